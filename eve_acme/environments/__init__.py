"""Environment adapters: wrappers, Gymnasium, and checks of environments and networks."""

from eve_acme.environments.gyms import FromGym
from eve_acme.environments.wrappers import (
    OneHotAsIndex,
    Rotated,
    TwoHot,
    Wrapper,
    with_discrete_actions,
)

__all__ = ["FromGym", "OneHotAsIndex", "Rotated", "TwoHot", "Wrapper", "with_discrete_actions"]
