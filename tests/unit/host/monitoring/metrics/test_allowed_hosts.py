import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.monitoring.metrics.allowed_hosts import is_our_name, is_our_origin

NAMES = {"host:8080", "lab.example"}


def test_addresses_and_what_the_user_has_named_are_ours(subtests: pytest.Subtests) -> None:
    for authority in [
        *("127.0.0.1", "127.0.0.1:9464", "10.1.2.3:80", "[::1]:9464", "[fe80::1]", "localhost", "LocalHost:9464"),
        *("localhost.", "host:8080", "HOST:8080", "lab.example", "lab.example:443", "Lab.Example.:443"),
    ]:
        with subtests.test(authority=authority):
            assert is_our_name(authority, NAMES)
            assert is_our_origin(f"http://{authority}", authority, NAMES)


@pytest.mark.parametrize("authority", ["127.0.0.1:9464", "10.1.2.3:80", "localhost:9464"])
def test_a_page_of_another_address_is_not_ours_and_one_of_a_name_that_the_user_gave_is(authority: str) -> None:
    for other in ("127.0.0.1:8000", "10.1.2.3", "1.2.3.4", "localhost:1234", "[::1]:9464"):
        assert not is_our_origin(f"http://{other}", authority, NAMES)
    for named in ("host:8080", "lab.example", "lab.example:443"):
        assert is_our_origin(f"https://{named}", authority, NAMES)


def test_any_other_name_may_lead_here_by_the_word_of_a_stranger(subtests: pytest.Subtests) -> None:
    for authority in [
        *("", "evil.example", "evil.example:9464", "127.0.0.1.evil.example", "localhost.evil.example", "host:8081"),
        *("evil.example@127.0.0.1", "127.0.0.1/evil", "127.0.0.1,evil.example", "127.0.0.1:x", "[::1", "host", " "),
        *("0x7f000001", "127.1", "evil.example#127.0.0.1", "127.0.0.1?x", "127.0.0.1:99999999"),
    ]:
        with subtests.test(authority=authority):
            assert not is_our_name(authority, NAMES)
            assert not is_our_origin(f"http://{authority}", authority, NAMES)


@pytest.mark.parametrize("origin", ["null", "", "file://", "ftp://127.0.0.1", "127.0.0.1", "data:text/html"])
def test_an_origin_that_is_no_page_of_ours_is_none(origin: str) -> None:
    assert not is_our_origin(origin, "127.0.0.1", NAMES)


@given(text=st.text(max_size=40))
def test_nothing_that_is_sent_breaks_it(text: str) -> None:
    is_our_name(text, NAMES)
    is_our_origin(text, text, NAMES)
    is_our_origin(f"http://{text}", text, NAMES)
