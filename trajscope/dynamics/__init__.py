"""How a run moves: coherence of its gradients, instability, local linear dynamics, divergence, recurrence, dimension.

`x_grad` and `x_inst` read a run. The others take a trajectory, a meta-state or an array: `rolling_var` and `dmd` (local
linear dynamics), `lyapunov` and `finite_time_lyapunov`, `recurrence`, `intrinsic_dimension`, `delay_embedding`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from trajscope.dynamics.coherence import x_grad
    from trajscope.dynamics.delay import delay_embedding
    from trajscope.dynamics.divergence import lyapunov
    from trajscope.dynamics.instability import x_inst
    from trajscope.dynamics.intrinsic import intrinsic_dimension
    from trajscope.dynamics.local import dmd, rolling_var
    from trajscope.dynamics.recurrences import recurrence
    from trajscope.dynamics.tangent import (
        finite_time_lyapunov,
        flow_exponents,
        jacobian_exponents,
        map_exponents,
    )

__all__ = [
    "delay_embedding",
    "dmd",
    "finite_time_lyapunov",
    "flow_exponents",
    "intrinsic_dimension",
    "jacobian_exponents",
    "lyapunov",
    "map_exponents",
    "recurrence",
    "rolling_var",
    "x_grad",
    "x_inst",
]

_where: dict[str, list[str]] = {
    "coherence": ["x_grad"],
    "delay": ["delay_embedding"],
    "divergence": ["lyapunov"],
    "instability": ["x_inst"],
    "intrinsic": ["intrinsic_dimension"],
    "local": ["dmd", "rolling_var"],
    "recurrences": ["recurrence"],
    "tangent": ["finite_time_lyapunov", "flow_exponents", "jacobian_exponents", "map_exponents"],
}
__getattr__, __dir__, _ = lazy_loader.attach(__name__, submod_attrs=_where)
