"""Whatever a body is, it is an answer or the caller's mistake; what is well formed arrives as it was sent."""

import base64
import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.ingress.http import base64_images
from tests.door import Door

NAMES = st.sampled_from([b"image", b"image", b"image", b"other", b"", b"\xff", "ü".encode(), b'im"age', b"image\0"])
LINES = st.one_of(
    st.sampled_from([b"", b"Content-Type: image/png\r\n", b"Content-Type: text/plain\r\n", b"X: \xff\r\n", b"bad\r\n"]),
    st.binary(max_size=20),
)
CONTENTS = st.binary(max_size=300)
BOUNDARY = "a-boundary-of-its-own"
DECLARED_FORM = f"multipart/form-data; boundary={BOUNDARY}".encode()
DECLARED = st.one_of(
    st.just(f"multipart/form-data; boundary={BOUNDARY}".encode()),
    st.sampled_from([b"image/jpeg", b"text/html", b"multipart/form-data", b"multipart/form-data; boundary=", b"\xff"]),
    st.builds(lambda rest: b"multipart/form-data; " + rest, st.binary(max_size=40)),
    st.sampled_from(["undefined", "idna", "utf-7", "zlib", "\xff"]).map(
        lambda name: f"multipart/form-data; boundary={BOUNDARY}; charset={name}".encode("latin-1")
    ),
)


END = b"--" + BOUNDARY.encode() + b"--\r\n"


def part(name, content, line=b"", filename=b'; filename="x"'):
    return b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n%b\r\n%b\r\n' % (
        BOUNDARY.encode(),
        name,
        filename,
        line,
        content,
    )


PARTS = st.builds(part, NAMES, CONTENTS, LINES, st.sampled_from([b'; filename="x"', b"", b"; filename*=x''%ff"]))
FORMS = st.builds(
    lambda parts, end: b"".join(parts) + end,
    st.lists(PARTS, max_size=4),
    st.sampled_from(
        [
            b"--" + BOUNDARY.encode() + b"--\r\n",
            b"--" + BOUNDARY.encode() + b"\r\n",
            b"",
        ]
    ),
)


def is_answer_or_mistake(status, told):
    return status == 200 or (400 <= status < 500 and told["error"]["code"] and told["error"]["message"])


@given(st.one_of(FORMS, CONTENTS), DECLARED, st.integers(1, 400))
def test_any_body_is_answered_or_refused(body, declared, chunk):
    assert is_answer_or_mistake(*Door().ask("/classify", body, [("Content-Type", declared)], chunk=chunk))


@given(st.binary(max_size=60))
def test_any_query_is_answered_or_refused(query):
    assert is_answer_or_mistake(*Door().ask("/classify", b"x", query=query))


@given(st.lists(CONTENTS, min_size=1, max_size=8), st.integers(1, 400))
def test_the_images_of_a_form_arrive_as_they_were_sent(images, chunk):
    door = Door()
    body = b"".join(part(b"image", image) for image in images) + f"--{BOUNDARY}--\r\n".encode()
    declared = f"multipart/form-data; boundary={BOUNDARY}".encode()
    status, told = door.ask("/classify", body, [("Content-Type", declared)], chunk=chunk)
    assert status == 200
    assert len(images) == 1 or len(told["results"]) == len(images)
    assert sorted(door.images) == sorted(images)


@given(CONTENTS, st.integers(0, 400), st.integers(1, 100))
def test_a_body_is_bounded_wherever_it_is_cut(body, limit, chunk):
    door = Door(max_request_bytes=1024)
    long = body + bytes(1024 + limit)
    status, _ = door.ask("/classify", long, chunk=chunk)
    assert (status, door.images) == ((200, [long]) if len(long) <= 1024 else (413, []))


def test_a_form_that_was_cut_off_loses_no_image_silently():
    parts, headers = part(b"image", b"one") + part(b"image", b"two"), [("Content-Type", DECLARED_FORM)]
    for end in (b"--\r\n", b"--"):
        door = Door()
        status, told = door.ask("/classify", parts + b"--" + BOUNDARY.encode() + end, headers)
        assert (status, len(told["results"]), door.images) == (200, 2, [b"one", b"two"])
    for body in (parts, part(b"image", b"one"), parts + b"--" + BOUNDARY.encode()):
        door = Door()
        status, told = door.ask("/classify", body, headers)
        assert (status, told["error"]["message"], door.images) == (
            422,
            "the form is malformed: it does not end with its boundary",
            [],
        )


def test_a_form_of_too_many_parts_is_told_how_many_there_may_be():
    for count in (3, 4, 100):
        for filename in (b'; filename="x"', b""):
            body = part(b"image", b"abc", filename=filename) * count + f"--{BOUNDARY}--\r\n".encode()
            status, told = Door(max_parts=2).ask("/classify", body, [("Content-Type", DECLARED_FORM)])
            assert (status, "1 to 2 images" in told["error"]["message"]) == (422, True)


MOST = 1024


@pytest.mark.parametrize("headers", [[], [("Content-Length", b"1025")]])
def test_one_image_is_read_no_further_than_an_image_may_be(headers):
    for path, more in (("/classify", []), ("/v2/models/ensemble/infer", [("Inference-Header-Content-Length", b"0")])):
        door = Door(max_image_bytes=MOST)
        status, told = door.ask(path, bytes(MOST + 1), headers + more)
        assert (status, door.images) == (413, [])
        assert "at most 1024 are accepted (transformer.max_image_bytes)" in json.dumps(told)
        assert Door(max_image_bytes=MOST).ask(path, bytes(MOST), more)[0] == 200


@pytest.mark.parametrize("declared", [b"multipart/form-data", DECLARED_FORM])
def test_a_form_that_declares_too_much_is_too_large_whatever_else_is_wrong(declared):
    headers = [("Content-Type", declared), ("Content-Length", b"99999999")]
    assert Door().ask("/classify", b"", headers)[0] == 413


def test_a_part_that_is_too_large_fails_alone():
    door = Door(max_image_bytes=MOST)
    body = b"".join(part(b"image", image) for image in (b"one", bytes(10 * MOST), bytes(MOST))) + END
    status, told = door.ask("/classify", body, [("Content-Type", DECLARED_FORM)])
    assert (status, door.images) == (200, [b"one", bytes(MOST)])
    error = told["results"][1]["error"]
    assert (error["code"], "transformer.max_image_bytes" in error["message"]) == ("image_too_large", True)


@pytest.mark.parametrize("chunk", [1000, 1_000_000])
def test_what_a_form_s_parser_reads_byte_by_byte_is_bounded(chunk):
    headers = [("Content-Type", DECLARED_FORM)]

    def answer(most, image=b"one", blanks=b""):
        body = part(b"image", image).removesuffix(b"\r\n") + b"\r\n" + END[:-4] + blanks + b"\r\n"
        return Door(max_parts=most).ask("/classify", body + part(b"image", b"two").partition(b"\r\n")[2] + END, headers)

    assert answer(2, blanks=b" " * 1000)[0] == 200
    status, told = answer(2, blanks=b" " * 500_000)
    assert (status, "bytes outside its images" in told["error"]["message"]) == (422, True)
    within = b"\r\n" + END[:-4] + b"x"
    assert answer(8, within * 6)[0] == 200
    status, told = answer(8, within * 20)
    assert (status, "has its boundary more than 9 times" in told["error"]["message"]) == (422, True)


@pytest.mark.parametrize("size", [10, 10_000])
def test_a_part_without_a_file_name_is_told_what_it_lacks(size):
    door = Door()
    body = part(b"image", bytes(size), filename=b"") + part(b"image", b"one") + END
    status, told = door.ask("/classify", body, [("Content-Type", DECLARED_FORM)])
    assert (status, door.images) == (200, [b"one"])
    assert "send the file itself, with a filename" in told["results"][0]["error"]["message"]


@pytest.mark.parametrize(
    ("before", "hint"),
    [
        (b"A preamble.\r\n", "it begins with its boundary, and nothing may come before that"),
        (part(b"image", b"one") + b"--another--\r\n", "it does not end with its boundary"),
    ],
)
def test_a_malformed_form_is_told_what_is_wrong(before, hint):
    body = before if before.endswith(b"--another--\r\n") else before + part(b"image", b"one") + END
    status, told = Door().ask("/classify", body, [("Content-Type", DECLARED_FORM)])
    assert (status, hint in told["error"]["message"]) == (422, True)


def test_several_members_of_gzip_are_told_to_be_one():
    body = gzip.compress(b"one") + gzip.compress(b"two")
    status, told = Door().ask("/classify", body, [("Content-Encoding", b"gzip")])
    assert (status, "in one piece" in told["error"]["message"]) == (422, True)


CONTENT = bytes(range(256))
STANDARD = base64.b64encode(CONTENT).decode()
TEXTS = {
    "standard": STANDARD,
    "line breaks": base64.encodebytes(CONTENT).decode(),
    "URL-safe": base64.urlsafe_b64encode(CONTENT).decode(),
    "without padding": STANDARD.rstrip("="),
    "of a canvas": f"data:image/jpeg;base64,{STANDARD}",
    "of a FileReader": f"data:application/octet-stream;base64,{STANDARD}",
}
NO_TEXTS = ("ä", "a", "data:image/jpeg,abc", "data:image/jpeg;base64", "no*base64", "abc=def")


def with_image(text):
    """The requests, by path, that have an image as text."""
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [text]}
    return {
        "/v2/models/ensemble/infer": {"inputs": [tensor]},
        "/v1/models/ensemble:predict": {"instances": [{"b64": text}]},
        "/api/v1.0/predictions": {"binData": text},
    }


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("path", with_image(""))
def test_an_image_is_read_from_base64_as_clients_write_it(path, text):
    door = Door()
    status, told = door.ask(path, json.dumps(with_image(text)[path]).encode())
    assert (status, door.images) == (200, [CONTENT]), told


@pytest.mark.parametrize("text", NO_TEXTS)
@pytest.mark.parametrize("path", with_image(""))
def test_what_is_no_base64_is_told_what_is(path, text):
    status, told = Door().ask(path, json.dumps(with_image(text)[path]).encode())
    assert (400 <= status < 500, base64_images.HINT in json.dumps(told)) == (True, True), told


def test_json_for_images_as_bodies_is_told_where_json_goes():
    status, told = Door().ask("/classify", b"{}", [("Content-Type", b"application/json")])
    assert status == 415
    for path in ("/v2/models/ensemble/infer", "/v1/models/ensemble:predict"):
        assert path in told["error"]["message"]
        assert Door().ask(path, json.dumps(with_image(STANDARD)[path]).encode())[0] == 200
