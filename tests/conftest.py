import pytest
import torch


@pytest.fixture(autouse=True)
def two_threads() -> None:
    """The suite must not depend on the number of cores for its order of sums."""
    torch.set_num_threads(2)
