"""Message selectors: conditions on headers and properties, in the SQL of JMS 2.0 (section 3.8). Pure.

How it works. The text becomes tokens, and a Pratt parser makes closures of them: a *value* gives a number, text, truth
value or `None` (NULL) for a message, a *condition* gives true, false or `None` (unknown). The test of a message does
not read the text again. Three things keep each step small: a text has few bytes and tokens; its nesting is bounded, so
that neither parser nor closures come near the recursion limit; and a row of operators of one rank, such as 300 ORs, is
one closure with a loop.
"""

from correlator.selector.parser import MAX_DEPTH, Selector
from correlator.selector.tokens import MAX_BYTES, MAX_TOKENS

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_TOKENS", "Selector"]
