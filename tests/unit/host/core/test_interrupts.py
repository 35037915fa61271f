import asyncio
import signal
import threading

import pytest

from host.core.interrupts import Interrupts


@pytest.fixture
def interrupts() -> Interrupts:
    return Interrupts()


def test_the_first_signal_cancels_the_work_and_becomes_keyboard_interrupt(interrupts: Interrupts) -> None:
    cleaned = []

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    with interrupts.installed(), pytest.raises(KeyboardInterrupt):
        interrupts.run(work())
    assert cleaned == [True]


def test_a_second_signal_does_not_cut_the_cleaning_up_short(interrupts: Interrupts) -> None:
    cleaned = []

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)
            signal.raise_signal(signal.SIGTERM)
            cleaned.append(True)

    def all_of_it() -> None:
        try:
            interrupts.run(work())
        finally:
            with interrupts.deferred():
                signal.raise_signal(signal.SIGINT)
                cleaned.append(True)

    with interrupts.installed(), pytest.raises(KeyboardInterrupt):
        all_of_it()
    assert cleaned == [True, True]


def test_a_signal_while_cleaning_up_after_success_counts_afterwards(interrupts: Interrupts) -> None:
    done = []

    def clean_up() -> None:
        with interrupts.deferred():
            with interrupts.deferred():
                signal.raise_signal(signal.SIGINT)
                done.append("inner")
            done.append("outer")

    with interrupts.installed(), pytest.raises(KeyboardInterrupt):
        clean_up()
    assert done == ["inner", "outer"]


def test_a_signal_while_another_thread_cleans_up_counts_after_the_main_threads_next_cleaning(
    interrupts: Interrupts,
) -> None:
    inside, go_on, done = threading.Event(), threading.Event(), list[str]()

    def write() -> None:
        with interrupts.deferred():
            inside.set()
            go_on.wait()
        done.append("written")

    with interrupts.installed():
        thread = threading.Thread(target=write)
        thread.start()
        inside.wait()
        signal.raise_signal(signal.SIGINT)
        go_on.set()
        thread.join()
        with pytest.raises(KeyboardInterrupt), interrupts.deferred():
            done.append("cleaned up")
    assert done == ["written", "cleaned up"]


def test_outside_of_a_loop_a_signal_interrupts_at_once(interrupts: Interrupts) -> None:
    with interrupts.installed(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGHUP)


def test_handlers_are_put_back(interrupts: Interrupts) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with interrupts.installed():
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_in_another_thread_nothing_is_installed(interrupts: Interrupts) -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def look() -> None:
        with interrupts.installed():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


def test_work_that_ends_by_itself_returns_and_a_cancellation_of_its_own_stays_one(interrupts: Interrupts) -> None:
    async def five() -> int:
        return 5

    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    assert interrupts.run(five()) == 5
    with pytest.raises(asyncio.CancelledError):
        interrupts.run(cancels_itself())


def test_threads_of_the_work_have_ended_when_it_returns(interrupts: Interrupts) -> None:
    """A thread that is starting a device must be seen by the sweep that follows."""
    started, finish, ended = threading.Event(), threading.Event(), []

    def start_a_device() -> None:
        started.set()
        finish.wait(30)
        ended.append(True)

    async def work() -> None:
        task = asyncio.ensure_future(asyncio.to_thread(start_a_device))
        while not started.is_set():  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(finish.set)
        signal.raise_signal(signal.SIGINT)
        await task

    with interrupts.installed(), pytest.raises(KeyboardInterrupt):
        interrupts.run(work())
    assert ended == [True]


def test_a_wait_ends_at_a_signal_which_is_the_normal_end(interrupts: Interrupts) -> None:
    cancelled = []

    async def beside() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    async def work() -> str:
        asyncio.get_running_loop().call_later(0, signal.raise_signal, signal.SIGTERM)
        await interrupts.wait(beside())
        await asyncio.sleep(0)  # what follows is not cancelled
        return "done"

    with interrupts.installed():
        assert interrupts.run(work()) == "done"
        with interrupts.deferred():
            pass
    assert cancelled == [True]


def test_a_wait_ends_with_the_error_of_what_goes_on_meanwhile(interrupts: Interrupts) -> None:
    async def fails() -> None:
        raise ValueError("gone")

    with interrupts.installed(), pytest.raises(ValueError, match="gone"):
        interrupts.run(interrupts.wait(asyncio.sleep(3600), fails()))
