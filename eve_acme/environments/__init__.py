"""What makes an environment fit: wrappers, Gymnasium, and checks of what others bring."""

from eve_acme.environments.gyms import FromGym
from eve_acme.environments.wrappers import (
    OneHotAsIndex,
    Rotated,
    TwoHot,
    Wrapper,
    with_discrete_actions,
)

__all__ = ["FromGym", "OneHotAsIndex", "Rotated", "TwoHot", "Wrapper", "with_discrete_actions"]
