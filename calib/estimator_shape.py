"""scikit-learn's estimator interface by shape, without importing scikit-learn.

An estimator stores its constructor arguments unchanged under their own names and learns only in
``fit``, into names that end with an underscore. That is all that cloning, pipelines and parameter
searches of scikit-learn ask for.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, Self

from calib.errors import ConfigurationError, NotFittedError

__all__ = ["EstimatorShape"]


class EstimatorShape:
    """``get_params``, ``set_params``, a ``repr`` and the hooks scikit-learn looks for."""

    @classmethod
    def _parameter_names(cls) -> list[str]:
        parameters = list(inspect.signature(cls.__init__).parameters.values())
        return [parameter.name for parameter in parameters[1:]]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Constructor arguments by name.

        Args:
            deep: accepted for scikit-learn; there are no nested estimators.
        """
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **parameters: Any) -> Self:
        """Replace constructor arguments; they are validated by ``fit``.

        Raises:
            ConfigurationError: for a name the constructor does not have.
        """
        names = self._parameter_names()
        for name, value in parameters.items():
            if name not in names:
                raise ConfigurationError(name, value, f"parameters are {names}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if repr(value) != repr(defaults[name].default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_is_fitted__(self) -> bool:
        return any(name.endswith("_") and not name.startswith("_") for name in vars(self))

    def __sklearn_tags__(self) -> Any:
        # Only scikit-learn asks for tags, so its module is loaded when this runs.
        tools = sys.modules.get("sklearn.utils")
        if tools is None:
            raise AttributeError("tags exist only while scikit-learn is loaded")
        return tools.Tags(
            estimator_type=None,
            target_tags=tools.TargetTags(required=True),
            transformer_tags=tools.TransformerTags(preserves_dtype=["float32"]),
        )

    def _require_fit(self) -> None:
        """Raise unless ``fit`` has run.

        Raises:
            NotFittedError: naming the class.
        """
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"{type(self).__name__} has no results yet: call fit first")
