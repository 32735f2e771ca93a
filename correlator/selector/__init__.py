"""Message selectors: conditions on headers and properties, in the SQL of JMS 2.0 (section 3.8). Pure.

Theory of operation. The text becomes tokens, and a Pratt parser makes closures of them: a *value* gives a number, text,
truth value or `None` (NULL) for a message, a *condition* gives true, false or `None` (unknown). The text is not looked
at again when messages are tested. Three things keep each step small: a text has few bytes and tokens, it nests so
little that neither parser nor closures come near the recursion limit, and operators of one rank in a row, such as 300
ORs, are one closure with a loop.
"""

from correlator.selector.parser import MAX_DEPTH, Selector
from correlator.selector.tokens import MAX_BYTES, MAX_TOKENS

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_TOKENS", "Selector"]
