"""contract, set_contract, get_contract, resolve."""

import asyncio
import pickle
import threading

import pytest
import torch

import repkernels
from repkernels.contract import DEFAULTS, NAMES, Contract, digits_of, resolve


@pytest.fixture(autouse=True)
def _no_process_contract():
    yield
    repkernels.set_contract(None)


def test_nothing_is_in_force_at_first():
    assert repkernels.get_contract() is None


def test_one_name_means_both_directions():
    with repkernels.contract("ordered") as pair:
        assert pair == repkernels.get_contract() == Contract("ordered", "ordered")


def test_it_nests_and_leaves_by_exceptions():
    with repkernels.contract(("fixed8", "fixed16")):
        with pytest.raises(KeyError), repkernels.contract("ordered"):
            raise KeyError
        assert repkernels.get_contract() == ("fixed8", "fixed16")
    assert repkernels.get_contract() is None


def test_one_object_may_be_entered_twice():
    ordered = repkernels.contract("ordered")
    with ordered, repkernels.contract("fixed8"), ordered:
        assert repkernels.get_contract() == ("ordered", "ordered")
    assert repkernels.get_contract() is None


def test_the_context_wins_over_the_process():
    repkernels.set_contract("fixed32")
    assert repkernels.get_contract() == ("fixed32", "fixed32")
    with repkernels.contract("ordered"):
        repkernels.set_contract("fixed8")
        assert repkernels.get_contract() == ("ordered", "ordered")
    assert repkernels.get_contract() == ("fixed8", "fixed8")
    with repkernels.contract(None):
        assert repkernels.get_contract() is None
        assert resolve(None, torch.float32, "cpu") == DEFAULTS[torch.float32]


def test_set_contract_reaches_other_threads_and_a_context_does_not():
    seen = []

    def look():
        seen.append(repkernels.get_contract())

    repkernels.set_contract("fixed16")
    with repkernels.contract("ordered"):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == [("fixed16", "fixed16")]


def test_threads_do_not_see_one_another():
    inside, wrong = threading.Barrier(4), []

    def work(name):
        for _ in range(50):
            with repkernels.contract(name):
                inside.wait(timeout=60)
                if repkernels.get_contract() != (name, name):
                    wrong.append(name)
            inside.wait(timeout=60)
            if repkernels.get_contract() is not None:
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("ordered", "fixed8", "fixed16", "fixed32")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_tasks_do_not_see_one_another():
    async def work(name):
        for _ in range(20):
            with repkernels.contract(name):
                await asyncio.sleep(0)
                assert repkernels.get_contract() == (name, name)
            assert repkernels.get_contract() is None

    async def main():
        await asyncio.gather(*(work(name) for name in NAMES))

    asyncio.run(main())


def test_as_a_decorator():
    @repkernels.contract("fixed8")
    def ask(depth):
        """Documented."""
        return ask(depth - 1) if depth else repkernels.get_contract()

    @repkernels.contract("ordered")
    async def ask_later():
        await asyncio.sleep(0)
        return repkernels.get_contract()

    assert ask(3) == ("fixed8", "fixed8")
    assert ask.__doc__ == "Documented."
    assert asyncio.run(ask_later()) == ("ordered", "ordered")
    assert repkernels.get_contract() is None


def test_a_generator_is_not_decorated():
    with pytest.raises(TypeError, match="generator"):

        @repkernels.contract("ordered")
        def produce():
            yield 1


@pytest.mark.parametrize("bad", ["Ordered", "fixed", "fixed12", "", ("ordered", "fixed9")])
def test_unknown_names_raise(bad):
    for call in (repkernels.contract, repkernels.set_contract, lambda c: resolve(c, torch.float32, "cpu")):
        with pytest.raises(ValueError, match=r"contract: unknown contract .*choose one of ordered, fixed8"):
            call(bad)


@pytest.mark.parametrize("bad", [7, ("ordered",), ("ordered",) * 3, {"forward": "ordered"}])
def test_what_is_no_contract_raises(bad):
    with pytest.raises(TypeError, match="expected a name or a pair"):
        repkernels.contract(bad)
    with pytest.raises(TypeError, match="^contract: expected a name or a pair"):
        resolve(bad, torch.float32, "cpu")


def test_what_has_no_hash():
    with pytest.raises(ValueError, match=r"^contract: unknown contract \['fixed8'\]"):
        resolve(("ordered", ["fixed8"]), torch.float32, "cpu")
    assert resolve(["ordered", "fixed8"], torch.float32, "cpu") == ("ordered", "fixed8")


@pytest.mark.parametrize(
    ("dtype", "pair"),
    [
        (torch.bfloat16, ("fixed16", "fixed24")),
        (torch.float16, ("fixed16", "fixed24")),
        (torch.float32, ("fixed24", "fixed32")),
        (torch.float64, ("ordered", "ordered")),
    ],
)
def test_defaults(dtype, pair):
    assert resolve(None, dtype, "cpu") == resolve(None, dtype, "cuda") == pair


def test_the_call_wins():
    with repkernels.contract("ordered"):
        assert resolve("fixed8", torch.float32, "cpu") == ("fixed8", "fixed8")
        assert resolve(["fixed8", "ordered"], torch.float32, "cpu") == ("fixed8", "ordered")
        assert resolve(None, torch.bfloat16, "cpu") == ("ordered", "ordered")


def test_native_is_for_half_types_and_ordered_on_the_cpu():
    assert resolve("native", torch.bfloat16, "cuda") == ("native", "native")
    assert resolve(("native", "fixed24"), torch.float16, "cpu") == ("ordered", "fixed24")
    for dtype in (torch.float32, torch.float64):
        for device in ("cpu", "cuda"):
            with pytest.raises(ValueError, match="'native' means floating-point tensor cores"):
                resolve(("ordered", "native"), dtype, device)


def test_fixed_is_not_for_fp64_and_the_error_says_where_it_comes_from():
    with pytest.raises(ValueError, match=r"contract: 'fixed16' is not defined for torch\.float64; use 'ordered'"):
        resolve("fixed16", torch.float64, "cpu")
    with (
        repkernels.contract("fixed16"),
        pytest.raises(ValueError, match=r"contract \(set by repkernels\.contract or set_contract\)"),
    ):
        resolve(None, torch.float64, "cpu")


def test_digits_of():
    assert [digits_of(name) for name in NAMES] == [0, 1, 2, 3, 4, 0]


def test_pairs_are_plain_tuples_to_pickle():
    assert pickle.loads(pickle.dumps(Contract("ordered", "fixed8"))) == ("ordered", "fixed8")
