from snip.codes import LENGTH, is_code, new_code


def test_a_new_code_is_a_code():
    assert is_code(new_code())


def test_other_texts_are_not():
    assert not is_code("")
    assert not is_code("x" * (LENGTH + 1))
    assert not is_code("../a")
