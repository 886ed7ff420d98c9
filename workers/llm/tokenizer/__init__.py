"""Text to ids and back, from a file on this machine; nothing here ever asks a hub.

    load            a tokenizer from a `tokenizer.json`, a folder that holds one, or our own small one
    Tokenizer       encode (never yields control ids), encode_template (trusted text), decode
    TextStream      text of ids that come one by one
    from_tiktoken   the tokenizer.json of a vocabulary in tiktoken's format

`train.py` beside this file makes our own vocabulary, `rollstream-bpe.json`.
"""

from workers.llm.tokenizer.tiktoken_format import from_tiktoken
from workers.llm.tokenizer.tokenizer import TextStream, Tokenizer, load

__all__ = ["TextStream", "Tokenizer", "from_tiktoken", "load"]
