"""What all requests are: pydantic models that say in one sentence what is wrong with them (`request_errors.py`)."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import InvalidRequest
from pipeline.prompts import TOO_DEEP
from pipeline.request_errors import invalid_request


class Request(BaseModel):
    """Base of all requests: strict, frozen, no unknown fields, no NaN where a number is asked for.

    Built when first used: a trainer imports all of them and may use one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    def __init__(self, **data: object) -> None:
        """Builds and checks a request.

        Raises:
            InvalidRequest: a field does not fit.
        """
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise invalid_request(error, type(self)) from None
        except RecursionError:
            raise InvalidRequest(TOO_DEEP) from None

    # pydantic calls an overridden __init__ also for nested models, where our error would lose the path to the field; this flag of
    # its own says that ours adds nothing to the check.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def parse(cls, data: object) -> Self:
        """A request from a map, such as a decoded JSON body.

        Raises:
            InvalidRequest: as the constructor.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise invalid_request(error, cls) from None
        except RecursionError:
            raise InvalidRequest(TOO_DEEP) from None
