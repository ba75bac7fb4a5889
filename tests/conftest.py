"""Settings of the whole test run: no timed assertions, nothing written to the user's cache."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# machines are shared and noisy, so no example has a deadline; CI repeats the same examples every time
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("HALOCAST_CACHE")
    os.environ["HALOCAST_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["HALOCAST_CACHE"]
    else:
        os.environ["HALOCAST_CACHE"] = before
