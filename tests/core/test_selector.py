"""What selectors mean and what they refuse (rule S4.1, trap T53, bad inputs 37 and 114 to 137)."""

import math
import re
import time
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from correlator.errors import ConfigError
from correlator.events import Headers, Message
from correlator.selector import MAX_BYTES, MAX_DEPTH, MAX_TOKENS, Selector

WHERE = "receivers[0].selector"


def matches(text: str, key: str | None = None, headers: Headers | None = None, **properties: Any) -> bool:
    return Selector.parse(text, WHERE).matches(Message(b"", properties, key, None, headers))


def truth(text: str, **properties: Any) -> bool | None:
    """True, false or unknown: two questions tell the three apart."""
    positive, negative = matches(f"({text})", **properties), matches(f"NOT ({text})", **properties)
    assert not (positive and negative)
    return True if positive else False if negative else None


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        Selector.parse(text, WHERE)
    assert caught.value.where == WHERE
    return caught.value


def syntax_error(text: str) -> str:
    """What is wrong by E6003, in one line."""
    error = refused(text)
    assert error.code == "E6003", error
    return error.what.splitlines()[0]


# --- what is refused, and how it is told ---


def test_37_error_text():
    assert str(refused("price > 10 AND name = ")) == (
        "E6003 receivers[0].selector: column 23: expected a value after '='\n"
        "  price > 10 AND name = \n"
        "                        ^"
    )
    assert str(refused("color == 'red'")) == (
        "E6004 receivers[0].selector: column 7: '==' is not an operator. Use '='\n  color == 'red'\n        ^"
    )


@pytest.mark.parametrize(("text", "column"), [("body.total > 5", 5), ("properties.region = 'EU'", 11), ("a. b = 1", 2)])
def test_a_name_with_a_dot_is_told_what_names_there_are(text, column):
    """Nothing else says that a selector cannot look into the body."""
    hint = "Names are those of properties and headers; a selector cannot use the body"
    assert syntax_error(text) == f"column {column}: '.' has no meaning here. {hint}"


def test_37_long_selector_shows_what_is_around_the_column():
    _, line, caret = str(refused(f"{'x' * 90} = = {'y' * 90}")).splitlines()
    assert line == f"  …{'x' * 47} = = {'y' * 23}…"
    assert line[caret.index("^")] == "="
    assert line[caret.index("^") - 2] == "="


def test_37_selector_of_several_lines_shows_the_line():
    assert refused("a = 1\n  AND b =\n  AND c = 2\n").what == (
        "line 3 column 3: expected a value after '=', found the reserved word 'AND'\n    AND c = 2\n    ^"
    )
    assert refused("a = 1\nAND b = \n").what == "line 2 column 9: expected a value after '='\n  AND b = \n          ^"


def test_37_control_characters_are_escaped_before_the_caret():
    assert refused("a\t=\t\x00\u202e").what == (
        "column 5: '\\x00' has no meaning here\n  a\\t=\\t\\x00\\u202e\n        ^"
    )
    assert refused("a = '\ud800\x1b' b").what.splitlines()[1:] == ["  a = '\\ud800\\x1b' b", "                   ^"]


@pytest.mark.parametrize("text", ["", " ", " \t\r\n\f "])
def test_114_115_empty_and_spaces_match_all(text):
    assert matches(text)
    assert matches(text, region="EU")
    assert Selector.parse(text, WHERE).text == text


def test_116_value_missing_after_operator():
    assert syntax_error("price >") == "column 8: expected a value after '>'"
    assert syntax_error("price > AND a = 1") == ("column 9: expected a value after '>', found the reserved word 'AND'")
    assert syntax_error("a = 1 OR") == "column 9: expected a value after 'OR'"
    assert syntax_error("NOT") == "column 4: expected a value after 'NOT'"


def test_117_value_missing_before_operator():
    assert syntax_error("= 5") == "column 1: expected a value, found '='"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("(a = 1", "column 7: expected ')' after '1'"),
        ("((a = 1) OR b", "column 14: expected ')' after 'b'"),
        ("a = 1)", "column 6: expected AND, OR or the end after '1', found ')'"),
        (")", "column 1: expected a value, found ')'"),
        ("()", "column 2: expected a value after '(', found ')'"),
        ("(", "column 2: expected a value after '('"),
    ],
)
def test_118_unbalanced_parentheses(text, what):
    assert syntax_error(text) == what


def test_119_unterminated_text():
    for text in ("name = 'abc", "name = '", "name = 'it''s", "name = 'abc''"):
        assert syntax_error(text) == "column 8: the text that begins here has no closing quote"
    assert syntax_error('name = "abc"') == "column 8: '\"' has no meaning here. Text stands in single quotes"


def test_120_quote_in_text():
    assert matches("'it''s' = name", name="it's")
    assert matches("name = ''''", name="'")
    assert matches("name = ''", name="")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a == 1", "column 3: '==' is not an operator. Use '='"),
        ("a != 1", "column 3: '!=' is not an operator. Use '<>'"),
        ("a && b", "column 3: '&&' is not an operator. Use AND"),
        ("a & b", "column 3: '&' is not an operator. Use AND"),
        ("a || b", "column 3: '||' is not an operator. Use OR"),
        ("a | b", "column 3: '|' is not an operator. Use OR"),
        ("!a", "column 1: '!' is not an operator. Use NOT"),
        ("a % 2 = 0", "column 3: '%' is not an operator. Use '+', '-', '*' or '/'"),
        ("a =< 1", "column 3: '=<' is not an operator. Use '<='"),
        ("a => 1", "column 3: '=>' is not an operator. Use '>='"),
    ],
)
def test_121_unknown_operators(text, what):
    error = refused(text)
    assert (error.code, error.what.splitlines()[0]) == ("E6004", what)


@pytest.mark.parametrize("word", ["AND", "or", "Between", "IN", "is", "LIKE", "escape", "NULL"])
def test_122_reserved_words_are_no_names(word):
    assert syntax_error(f"{word} = 1").startswith(f"column 1: expected a value, found the reserved word '{word}'")


def test_122_words_that_only_look_reserved_are_names():
    assert matches("AND_ = 1 and Not1 = 2", AND_=1, Not1=2)
    properties = {"\u0131n": 1, "i\u017f": 2}  # whose upper cases are IN and IS
    assert all(matches(f"{name} = {value}", **properties) for name, value in properties.items())


def test_123_null_is_no_value():
    for text, column in (("NULL = NULL", 1), ("x = NULL", 5), ("x <> null", 6)):
        what = syntax_error(text)
        assert what.startswith(f"column {column}: expected a value")
        assert what.endswith("Test for it with IS NULL")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a BETWEEN 1", "column 12: expected AND and the upper bound after '1'"),
        ("a BETWEEN 1 OR 2", "column 13: expected AND and the upper bound after '1', found the reserved word 'OR'"),
        ("a NOT BETWEEN 1 AND", "column 20: expected a value after 'AND'"),
        ("a BETWEEN AND 2", "column 11: expected a value after 'BETWEEN', found the reserved word 'AND'"),
    ],
)
def test_124_between_without_and(text, what):
    assert syntax_error(text) == what


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a IN ()", "column 7: expected text in single quotes after '(', found ')'"),
        ("a IN ('x',)", "column 11: expected text in single quotes after ',', found ')'"),
        ("a IN ('x' 'y')", "column 11: expected ',' or ')' after 'x', found 'y'"),
        ("a IN (1)", "column 7: expected text in single quotes after '(', found '1'"),
        ("a IN 'x'", "column 6: expected '(' after 'IN', found 'x'"),
        ("'a' IN ('x')", "column 1: expected the name of a property before IN"),
        ("a + 1 IN ('x')", "column 1: expected the name of a property before IN"),
    ],
)
def test_125_in_without_values(text, what):
    assert syntax_error(text) == what


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a LIKE 'x' ESCAPE 'ab'", "column 19: ESCAPE needs one character, found 2"),
        ("a LIKE 'x' ESCAPE ''", "column 19: ESCAPE needs one character, found 0"),
        ("a LIKE 'x' ESCAPE", "column 18: expected one character in single quotes after 'ESCAPE'"),
        ("a LIKE 'x!' ESCAPE '!'", "column 20: the escape character stands at the end of the pattern"),
        ("a LIKE '!x' ESCAPE '!'", "column 20: the escape character stands before 'x', not before '%', '_' or itself"),
        ("a LIKE b", "column 8: expected text in single quotes after 'LIKE', found 'b'"),
        ("5 LIKE 'x'", "column 1: expected the name of a property before LIKE"),
        ("a = 'x' ESCAPE '!'", "column 9: expected AND, OR or the end after 'x', found the reserved word 'ESCAPE'"),
    ],
)
def test_126_like_with_a_bad_escape(text, what):
    assert syntax_error(text) == what


def test_127_eight_percent_signs():
    selector = Selector.parse("a LIKE '%a%a%a%a%a%a%a%b'", WHERE)
    message = Message(b"", {"a": "a" * 60})
    began = time.thread_time()
    assert not selector.matches(message)
    assert time.thread_time() - began < 1  # a search that goes back for each sign tries 386 million places


def test_t53_127_long_text_of_a_hostile_sender():
    began = time.thread_time()
    assert not matches(f"a LIKE '%{'a' * 1000}b%'", a="a" * 1_000_000)
    assert not matches(f"a LIKE '%{'a' * 100}_b%'", a="a" * 100_000)
    assert time.thread_time() - began < 5  # letter by letter, these are two thousand million comparisons


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("0", 0),
        ("0x1F", 31),
        ("0X1fL", 31),
        ("1L", 1),
        ("1l", 1),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("- 9223372036854775808", -(2**63)),
        ("+62", 62),
        ("1d", 1.0),
        ("1.5F", 1.5),
        (".5", 0.5),
        ("7.", 7.0),
        ("7E3", 7000.0),
        ("-57.9e-2", -0.579),
        ("007.5", 7.5),
        ("1e-999", 0.0),
    ],
)
def test_128_numbers(literal, value):
    assert matches(f"a = {literal}", a=value)
    assert matches(f"{literal} = a", a=value)
    assert not matches(f"a = {literal}", a=value + 1000)


@pytest.mark.parametrize(
    ("literal", "what"),
    [
        ("1e999", "is too large"),
        ("1_000", "is not a number"),
        ("1.2.3", "is not a number"),
        ("0x", "is not a number"),
        ("0xFG", "is not a number"),
        ("5price", "is not a number"),
        ("1e", "is not a number"),
        ("1٣", "is not a number"),
        ("017", "is ambiguous: decimal or octal. Write it without the leading 0"),
        ("9223372036854775808", "is too large: whole numbers have at most 19 digits and 64 bits"),
        ("0xFFFFFFFFFFFFFFFF", "is too large: whole numbers have at most 19 digits and 64 bits"),
        ("99999999999999999999", "is too large: whole numbers have at most 19 digits and 64 bits"),
    ],
)
def test_128_what_is_no_number(literal, what):
    assert syntax_error(f"a = {literal}") == f"column 5: '{literal}' {what}"


def test_128_thousands_of_digits():
    assert "is too large" in syntax_error(f"a = {'9' * 4000}")
    assert "is too large" in syntax_error(f"a = {'9' * 4000}.5")
    assert "is not a number" in syntax_error(f"a = {'9' * 4000}x")
    assert refused(f"a = {'9' * 5000}").code == "E6006"


@pytest.mark.parametrize("text", ["a / 0 = 1", "a / 0.0 = 1", "a / b = 1", "1.5 / b = 1", "a / (2 - 2) <> 1"])
def test_129_division_by_zero_is_unknown(text):
    assert truth(text, a=1, b=0) is None


@pytest.mark.parametrize("sign", ["=", "<>", "<", "<=", ">", ">="])
def test_130_values_of_different_types_compare_false(sign):
    for text in ("'5' {} 3", "TRUE {} 1", "a {} 5", "5 {} a", "a {} TRUE", "b {} 0", "c {} 'x'", "c {} c"):
        assert truth(text.format(sign), a="5", b=False, c=b"x") is False


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">="])
def test_130_texts_and_truth_values_have_no_order(sign):
    for text in ("a {} 'a'", "a {} 'z'", "TRUE {} TRUE", "FALSE {} b"):
        assert truth(text.format(sign), a="a", b=True) is False


@pytest.mark.parametrize(
    "text", ["a + 1 = 6", "1 - a = 0", "-a = -5", "+a = 5", "b * 1 = 1", "a + a = '55'", "c + 1 > 0"]
)
def test_131_arithmetic_with_what_is_no_number_is_unknown(text):
    assert truth(text, a="5", b=True, c=b"5") is None


@pytest.mark.parametrize(
    ("begin", "end"), [("(", ")"), ("NOT ", ""), ("- ", ""), ("+", ""), ("1 + 2 * (", ")"), ("TRUE OR b AND (", ")")]
)
def test_132_depth(begin, end):
    def nested(depth: int) -> str:
        inner = begin * depth + "x" + end * depth
        return f"{inner} > 1 OR x" if begin in ("- ", "+", "1 + 2 * (") else inner

    assert matches(nested(MAX_DEPTH), x=True)
    for depth in (MAX_DEPTH + 1, 120):
        error = refused(nested(depth))
        assert (error.code, f"nested deeper than {MAX_DEPTH}" in error.what) == ("E6005", True)
    assert refused(nested(100_000)).code == "E6006"  # the length is looked at first


def test_132_parentheses_beside_each_other_are_not_nested():
    assert matches(" AND ".join(["(a = 1)"] * 100), a=1)
    assert matches(" AND ".join(["NOT -a = 1"] * 100), a=1)


def test_133_length():
    longest = f"a = '{'x' * (MAX_BYTES - 6)}'"
    assert len(longest) == MAX_BYTES
    assert matches(longest, a="x" * (MAX_BYTES - 6))
    for text in (f"{longest} ", longest.replace("x", "ä", 1), "x" * 10_000_000, " " * 10_000_000):
        error = refused(text)
        assert (error.code, error.what) == ("E6006", "longer than 4096 bytes")


def test_134_ten_thousand_terms():
    assert refused(" OR ".join(["a"] * 10_000)).code == "E6006"
    text = "+1" * (MAX_TOKENS // 2)
    assert refused(f"{text}").code == "E6003"
    assert refused(f"{text}+").what == "more than 1000 names, values and signs"
    assert matches(" OR ".join(f"a={n}" for n in range(250)), a=249)
    assert matches(f"a IN ({','.join(map(repr, map(str, range(498))))})", a="497")
    assert matches(f"{'1+' * 490}1 = a", a=491)


def test_135_names_in_any_alphabet():
    assert matches(
        "größe = 5 AND 価格 > 1 AND $e\u0301 = 'x' AND _x9$", **{"größe": 5, "価格": 2, "$e\u0301": "x", "_x9$": True}
    )
    assert not matches("Region = 'EU'", region="EU")
    assert syntax_error("order.id = 5").startswith("column 6: '.' has no meaning here. Names are those of properties")
    assert syntax_error("a² = 5") == "column 2: '²' has no meaning here"
    assert syntax_error("a =\xa05") == "column 4: '\\xa0' has no meaning here"


def test_136_headers_that_cannot_be_selected_by():
    for name in ("JMSXDeliveryCount", "JMSRedelivered"):
        error = refused(f"a = 1 AND {name} > 1")
        assert error.code == "E6007"
        assert f"column 11: '{name}' cannot be selected by: it changes with each delivery." in error.what
    for name in ("JMSDestination", "JMSReplyTo", "JMSExpiration", "JMSXUserID", "JMStype", "JMS", "JMSX"):
        error = refused(f"{name} = 'x'")
        assert error.code == "E6007"
        assert f"'{name}' cannot be selected by. Headers that can: JMSDeliveryMode, JMSPriority, " in error.what


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1=1; DROP TABLE rx", "column 4: ';' has no meaning here"),
        ("price + 1", "column 1: expected a condition, such as a comparison, found a value"),
        ("a = 1 OR 'a'", "column 10: expected a condition, such as a comparison, found a value"),
        ("'a' AND b = 1", "column 1: expected a condition, such as a comparison, found a value"),
        ("NOT (5)", "column 5: expected a condition, such as a comparison, found a value"),
        ("a = b = c", "column 1: expected a value, found a condition"),
        ("(a OR b) = TRUE", "column 1: expected a value, found a condition"),
        ("(a = 1) + 2 > 3", "column 1: expected a value, found a condition"),
        ("a = (b = c)", "column 8: expected ')' after 'b', found '='"),
        ("a = NOT b", "column 5: expected a value after '=', found the reserved word 'NOT'"),
        ("a b", "column 3: expected AND, OR or the end after 'a', found 'b'"),
        ("a NOT 5", "column 7: expected BETWEEN, IN or LIKE after 'NOT', found '5'"),
        ("a IS 5", "column 6: expected NULL or NOT NULL after 'IS', found '5'"),
        ("a IS NOT", "column 9: expected NULL after 'NOT'"),
        ("5 IS NULL", "column 1: expected the name of a property before IS NULL"),
    ],
)
def test_137_what_is_no_condition(text, what):
    assert syntax_error(text) == what


# --- what is selected ---

TRUTHS = {"TRUE": True, "FALSE": False, "missing": None}


@pytest.mark.parametrize(("one", "other"), list(product(TRUTHS, TRUTHS)))
def test_s4_1_truth_tables(one, other):
    values = TRUTHS[one], TRUTHS[other]
    both = False if False in values else None if None in values else True
    either = True if True in values else None if None in values else False
    assert truth(f"{one} AND {other}") is both
    assert truth(f"{one} OR {other}") is either
    assert truth(f"NOT ({one} AND {other})") is (None if both is None else not both)
    assert truth(f"NOT {one}") is (None if values[0] is None else not values[0])


def test_s4_1_null_in_every_operator():
    for text in (
        *(
            f"{pair}"
            for sign in ("=", "<>", "<", "<=", ">", ">=")
            for pair in (f"n {sign} 1", f"'x' {sign} n", f"n {sign} n")
        ),
        *(f"n {sign} 1 = a" for sign in "+-*/"),
        *("-n = 1", "n BETWEEN 1 AND 2", "a BETWEEN n AND 2", "a NOT BETWEEN 0 AND n", "n NOT BETWEEN 1 AND 2"),
        *("n IN ('x')", "n NOT IN ('x')", "n LIKE '%'", "n NOT LIKE '%'", "n", "NOT n"),
    ):
        assert truth(text, a=1, n=None) is None, text
        assert truth(text, a=1) is None, text


def test_s4_1_is_null():
    for value in (0, "", False, b"", math.nan):
        assert (truth("a IS NULL", a=value), truth("a is not null", a=value)) == (False, True)
    assert (truth("a IS NULL"), truth("a IS NOT NULL")) == (True, False)
    assert truth("a IS NULL", a=None) is True


def test_s4_1_comparisons():
    assert matches("a = 'x' AND b <> 'x' AND c = TRUE AND c <> FALSE", a="x", b="y", c=True)
    assert matches("a < 2 AND a <= 1 AND 2 > a AND 1 >= a AND a = 1.0 AND a <> 1.5", a=1)
    assert matches("a > 9223372036854775806.0 OR a = 9223372036854775807", a=2**63 - 1)
    assert truth("a = 9007199254740992.0", a=2**53 + 1) is False  # by what they are


def test_s4_1_arithmetic_and_its_order():
    assert matches("1 + 2 * 3 = 7 AND (1 + 2) * 3 = 9 AND 8 - 4 - 2 = 2 AND 8 / 4 / 2 = 1 AND 2 * 3 / 4 = 1")
    assert matches("-a * 2 = -6 AND - -a = 3 AND a - -1 = 4 AND -(a + 1) = -4 AND a-1=2", a=3)
    assert matches("7 / 2 = 3 AND -7 / 2 = -3 AND 7 / -2 = -3 AND 7 / 2.0 = 3.5 AND 7.0 / 2 = 3.5")


@pytest.mark.parametrize(
    "text",
    [
        "a + 1 > 0",
        "-b > 0",
        "-b * 0 = 0",
        "b / -1 > 0",
        "a * a > 0",
        "1e308 * 10 > 0",
        "big + 1.5 > 0",
        "inf - inf = 0",
        "-inf < 0",
    ],
)
def test_s4_1_results_out_of_range_are_unknown(text):
    assert truth(text, a=2**63 - 1, b=-(2**63), big=10**400, inf=math.inf) is None


def test_s4_1_between():
    assert [truth("a BETWEEN 2 AND 3", a=a) for a in (1, 2, 3, 4)] == [False, True, True, False]
    assert [truth("a NOT BETWEEN 2 AND 3", a=a) for a in (1, 2, 3, 4)] == [True, False, False, True]
    assert matches("a BETWEEN 1 + 1 AND 2 * 2 AND b", a=3, b=True)
    assert truth("a BETWEEN n AND 2", a=3) is False
    assert truth("a NOT BETWEEN n AND 2", a=3) is True
    assert truth("a BETWEEN 'a' AND 'z'", a="b") is False
    assert truth("a NOT BETWEEN 1 AND 2", a="b") is False


def test_s4_1_in():
    assert matches("a IN ('x', 'it''s') AND a NOT IN ('y')", a="it's")
    assert matches("(a) in ('x')", a="x")
    assert (truth("a IN ('x')", a="y"), truth("a NOT IN ('x')", a="x")) == (False, False)
    assert (truth("a IN ('5')", a=5), truth("a NOT IN ('5')", a=5)) == (False, True)


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("'12%3'", ["123", "12993", "123333"], ["1234", "12", "13"]),
        ("'l_se'", ["lose", "l\nse", "l😀se"], ["loose", "lse"]),
        (r"'\_%' ESCAPE '\'", ["_foo", "_"], ["bar", ""]),
        ("'100!%' ESCAPE '!'", ["100%"], ["100", "100!"]),
        ("'!!!_' ESCAPE '!'", ["!_"], ["!x", "!!_"]),
        ("'%%' ESCAPE '%'", ["%"], ["", "%%"]),
        ("'%'", ["", "x", "a\nb"], []),
        ("''", [""], ["x"]),
        ("'%_%_%'", ["ab", "abc"], ["", "a"]),
        ("'a%a'", ["aa", "aba"], ["a"]),
        ("'%_b_%'", ["abc", "bbb", "xabcx"], ["bc", "ab", "baab"]),
        ("'.*'", [".*"], ["x", ""]),
    ],
)
def test_s4_1_like(pattern, fits, does_not):
    for text, wanted in [(text, True) for text in fits] + [(text, False) for text in does_not]:
        assert truth(f"a LIKE {pattern}", a=text) is wanted
        assert truth(f"a not like {pattern}", a=text) is not wanted
    assert (truth(f"a LIKE {pattern}", a=5), truth(f"a NOT LIKE {pattern}", a=5)) == (False, True)


def test_s4_1_a_name_alone_is_a_truth_value():
    assert matches("a AND NOT b", a=True, b=False)
    assert [truth("a", a=value) for value in (True, False, None, 1, "TRUE", b"x")] == [
        True,
        False,
        None,
        False,
        False,
        False,
    ]


def test_s4_1_precedence_of_logic():
    assert matches("TRUE OR TRUE AND FALSE")
    assert not matches("(TRUE OR TRUE) AND FALSE")
    assert matches("NOT FALSE OR TRUE")
    assert matches("NOT a = 1 AND TRUE", a=2)
    assert matches("NOT a IN ('x') and not a like 'x' Or FALSE", a="y")


def test_s4_1_headers():
    text = (
        "JMSDeliveryMode = 'NON_PERSISTENT' AND JMSPriority = 7 AND JMSMessageID = 'ID:1' AND JMSTimestamp = 5 "
        "AND JMSCorrelationID = 'c' AND JMSType = 't' AND JMSXGroupID = 'k' AND JMS_x = 1"
    )
    assert matches("JMSPriority = 0 AND JMSDeliveryMode = 'PERSISTENT'", headers=Headers(priority=0, persistent=True))
    headers = Headers(persistent=False, priority=7, message_id="ID:1", timestamp=5, correlation_id="c", type="t")
    assert matches(text, key="k", headers=headers, JMS_x=1)


@pytest.mark.parametrize("headers", [None, Headers()])
def test_s4_1_headers_that_are_not_there(headers):
    assert matches("JMSDeliveryMode = 'PERSISTENT' AND JMSPriority = 4", headers=headers)
    for name in ("JMSMessageID", "JMSTimestamp", "JMSCorrelationID", "JMSType", "JMSXGroupID"):
        assert matches(f"{name} IS NULL", headers=headers, **{name: "a property is no header"})


# --- any text, any message ---

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.sampled_from((2**63 - 1, -(2**63), 2**63, 10**400)),
    st.sampled_from((0.0, 0.5, 1.0, 2.5)),
    st.floats(),
    st.sampled_from(("", "a", "ab", "5", "%")),
    st.text(max_size=5),
    st.binary(max_size=3),
)
NAMES = ("a", "b", "$c", "größe", "JMS_d")
MESSAGES = st.builds(
    lambda properties, key, headers: Message(b"", properties, key, None, headers),
    st.dictionaries(st.sampled_from(NAMES), VALUES),
    st.sampled_from((None, "a")),
    st.sampled_from((None, Headers(priority=1, type="a", persistent=False))),
)
RESERVED = ("AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "TRUE", "FALSE", "ESCAPE")
SIGNS = ("=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "(", ")", ",", ";", "==", "!=", "%", ".")
HEADERS = ("JMSPriority", "JMSType", "JMSXGroupID", "JMSRedelivered")
LITERALS = ("1", "0", "2.5", "0x1F", "1e999", "017", "9223372036854775808", "'a'", "'it''s'", "'%a_'", "'!'", "'", "\n")
PIECES = st.sampled_from((*NAMES, *RESERVED, *SIGNS, *HEADERS, *LITERALS))


@settings(max_examples=600)
@given(st.one_of(st.lists(PIECES, max_size=40).map(" ".join), st.lists(PIECES).map("".join), st.text()), MESSAGES)
def test_s4_1_any_text_parses_or_is_refused(text, message):
    made = parsed(text)
    if isinstance(made, Selector):
        assert made.matches(message) in (True, False)
        return
    assert made.code in ("E6003", "E6004", "E6005", "E6006", "E6007")
    if made.code != "E6006":
        what, line, caret = made.what.splitlines()
        assert re.match(r"(line \d+ )?column \d+: ", what)
        assert caret == " " * (len(caret) - 1) + "^"
        assert 3 <= len(caret) <= len(line) + 1
        assert str(made).endswith("^")


def parsed(text: str) -> Selector | ConfigError:
    try:
        return Selector.parse(text, WHERE)
    except ConfigError as error:
        return error


@settings(max_examples=600)
@given(st.text("ab%_", max_size=12), st.text("ab\n", max_size=12))
@example("_a%", "ba")
def test_s4_1_like_is_as_the_regular_expression(pattern, text):
    assert matches(f"a LIKE '{pattern}'", a=text) is is_like(text, pattern)


def is_like(text: str, pattern: str, escape: str = "") -> bool:
    parts = re.findall("(?s)" + (re.escape(escape) + ".|." if escape else "."), pattern)
    shapes = {"%": ".*", "_": "."}
    return bool(re.fullmatch("".join(shapes.get(part, re.escape(part[-1])) for part in parts), text, re.DOTALL))


# --- random selectors against a simple evaluator of their trees ---

TEXTS = st.text("ab5%_'", max_size=4)
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from((0.0, 0.5, 2.5)),
    st.floats(allow_nan=False, allow_infinity=False),
)
NAMED = st.tuples(st.just("name"), st.sampled_from((*NAMES, "JMSPriority", "JMSXGroupID")))


def values(inner: Any) -> Any:
    return st.one_of(
        st.tuples(st.sampled_from("+-*/"), inner, inner),
        st.tuples(st.just("sign"), st.sampled_from("+-"), inner),
    )


VALUE = st.recursive(
    st.one_of(NAMED, NAMED, st.tuples(st.just("literal"), st.one_of(NUMBERS, NUMBERS, TEXTS, st.booleans()))),
    values,
    max_leaves=4,
)
NEGATIVE = st.booleans()
COMPARISON = st.one_of(
    st.tuples(st.sampled_from(("=", "<>", "<", "<=", ">", ">=")), VALUE, VALUE),
    st.tuples(st.just("BETWEEN"), NEGATIVE, VALUE, VALUE, VALUE),
    st.tuples(st.just("IN"), NEGATIVE, NAMED, st.lists(TEXTS, min_size=1, max_size=3)),
    st.tuples(
        st.just("LIKE"),
        NEGATIVE,
        NAMED,
        st.lists(st.sampled_from(("a", "b", "%", "_", "!%", "!_", "!!"))),
        st.just("!"),
    ),
    st.tuples(st.just("LIKE"), NEGATIVE, NAMED, st.lists(st.sampled_from(("a", "b", "%", "_", "'"))), st.just("")),
    st.tuples(st.just("IS NULL"), NEGATIVE, NAMED),
    st.tuples(st.just("literal"), st.booleans()),
    NAMED,
)
CONDITION = st.recursive(
    COMPARISON,
    lambda inner: st.one_of(st.tuples(st.sampled_from(("AND", "OR")), inner, inner), st.tuples(st.just("NOT"), inner)),
    max_leaves=6,
)
STRENGTH = {"OR": 1, "AND": 2, "NOT": 3, "+": 5, "-": 5, "*": 6, "/": 6, "sign": 7, "name": 8, "literal": 8}


def strength(tree: Any) -> int:
    return STRENGTH.get(tree[0], 4)


def rendered(tree: Any, least: int = 0) -> str:  # noqa: PLR0911  one for each kind
    """The tree as text with no parenthesis more than needed; `least` is how strongly it must hold together."""
    kind, *rest = tree
    negative = "NOT " if rest[0] is True else ""
    if strength(tree) < least:
        return f"({rendered(tree)})"
    if kind == "name":
        return str(rest[0])
    if kind == "literal":
        return literal(rest[0])
    if kind == "sign":
        return f"{rest[0]} {rendered(rest[1], 7)}"
    if kind == "NOT":
        return f"NOT {rendered(rest[0], 3)}"
    if kind == "BETWEEN":
        value, low, high = (rendered(one, 5) for one in rest[1:])
        return f"{value} {negative}BETWEEN {low} AND {high}"
    if kind == "IN":
        return f"{rest[1][1]} {negative}IN ({', '.join(literal(text) for text in rest[2])})"
    if kind == "LIKE":
        return f"{rest[1][1]} {negative}LIKE {literal(''.join(rest[2]))}" + (" ESCAPE '!'" if rest[3] else "")
    if kind == "IS NULL":
        return f"{rest[1][1]} IS {negative}NULL"
    own = strength(tree)
    left, right = (5, 5) if own == 4 else (own, own + 1)
    return f"{rendered(rest[0], left)} {kind} {rendered(rest[1], right)}"


def literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).upper()


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def evaluated(tree: Any, message: Message) -> Any:  # noqa: PLR0911  one for each kind
    """The value or truth of a tree, in the words of the standard."""
    kind, *rest = tree
    if kind == "literal":
        return rest[0]
    if kind == "name":
        header = {"JMSPriority": message.headers.priority if message.headers else 4, "JMSXGroupID": message.key}
        return header[rest[0]] if rest[0] in header else message.properties.get(rest[0])
    if kind == "sign":
        return computed(rest[0], 0, evaluated(rest[1], message))
    if kind in ("+", "-", "*", "/"):
        return computed(kind, *(evaluated(one, message) for one in rest))
    if kind in ("AND", "OR", "NOT"):
        truths = [condition(one, message) for one in rest]
        if kind == "NOT":
            return None if truths[0] is None else not truths[0]
        for wanted in (False, None) if kind == "AND" else (True, None):
            if wanted in truths:
                return wanted
        return kind == "AND"
    if kind == "BETWEEN":
        negative, value, low, high = rest
        inside = ("AND", (">=", value, low), ("<=", value, high))
        return evaluated(("OR", ("<", value, low), (">", value, high)) if negative else inside, message)
    if kind in ("IN", "LIKE", "IS NULL"):
        found = evaluated(rest[1], message)
        if kind == "IS NULL":
            return (found is None) is not rest[0]
        if found is None:
            return None
        if kind == "IN":
            return (found in rest[2]) is not rest[0]
        return (isinstance(found, str) and is_like(found, "".join(rest[2]), rest[3])) is not rest[0]
    return compared(kind, *(evaluated(one, message) for one in rest))


def condition(tree: Any, message: Message) -> bool | None:
    found = evaluated(tree, message)
    return found if tree[0] != "name" or found is None else found is True


def compared(sign: str, one: Any, other: Any) -> bool | None:
    if one is None or other is None:
        return None
    if number(one) and number(other):
        return {
            "=": one == other,
            "<>": one != other,
            "<": one < other,
            "<=": one <= other,
            ">": one > other,
            ">=": one >= other,
        }[sign]
    alike = type(one) is type(other) and isinstance(one, str | bool)
    return alike and {"=": one == other, "<>": one != other}.get(sign, False)


def computed(sign: str, one: Any, other: Any) -> Any:
    if not number(one) or not number(other):
        return None
    try:
        if isinstance(one, float) or isinstance(other, float):
            one, other = float(one), float(other)
            result = {"+": one + other, "-": one - other, "*": one * other}[sign] if sign != "/" else one / other
            return result if math.isfinite(result) else None
        exact = Fraction(one) / other if sign == "/" else {"+": one + other, "-": one - other, "*": one * other}[sign]
    except (ZeroDivisionError, OverflowError):
        return None
    return math.trunc(exact) if -(2**63) <= math.trunc(exact) < 2**63 else None


@settings(max_examples=600)
@given(CONDITION, st.lists(MESSAGES, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_s4_1_selectors_mean_what_their_trees_mean(tree, messages, random):
    text = rendered(tree)
    selector, opposite = Selector.parse(text, WHERE), Selector.parse(f"NOT ({text})", WHERE)
    spaced = Selector.parse(reformatted(text, random), WHERE)
    for message in messages:
        wanted = condition(tree, message)
        assert selector.matches(message) is (wanted is True), text
        assert opposite.matches(message) is (wanted is False), text
        assert spaced.matches(message) is (wanted is True), text


def reformatted(text: str, random: Any) -> str:
    """The same selector with other spaces, and its reserved words in other cases."""
    parts = re.findall(r"'(?:[^']|'')*'|\w+|\W", text)
    return "".join(
        random.choice((" ", "\n\t", "  "))
        if part == " "
        else random.choice((part.lower(), part.title()))
        if part in RESERVED
        else part
        for part in parts
    )
