"""Byte-level BPE from its definition, to judge a tokenizer that a library builds."""

import regex

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# SmolLM cuts each digit off before GPT-2's pattern applies to what lies between.
FIRST_CUT = {"gpt-2": r"(?!)", "smollm": r"\p{N}"}


def byte_letters():
    """GPT-2's letter for each byte: itself where printable, else the next one from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def merge(word, ranks):
    parts = list(word)
    while len(parts) > 1:
        best = min(
            range(len(parts) - 1),
            key=lambda i: ranks.get((parts[i], parts[i + 1]), len(ranks)),
        )
        pair = (parts[best], parts[best + 1])
        if pair not in ranks:
            break
        parts[best : best + 2] = ["".join(pair)]
    return parts


def pieces(pattern, text):
    """The matches of a pattern and the text between them, in order."""
    end = 0
    for match in regex.finditer(pattern, text):
        yield text[end : match.start()], False
        yield match.group(), True
        end = match.end()
    yield text[end:], False


def encode(text, metadata):
    """Token ids of a text under GGUF metadata."""
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = {token: i for i, token in enumerate(tokens)}
    merges = metadata["tokenizer.ggml.merges"]
    ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(merges)}
    letters = byte_letters()
    kinds = metadata["tokenizer.ggml.token_type"]
    whole = [token for token, kind in zip(tokens, kinds, strict=True) if kind in (3, 4)]
    whole_pattern = "|".join(regex.escape(t) for t in sorted(whole, key=len, reverse=True))
    encoded = []
    for part, is_whole in pieces(whole_pattern, text):
        if is_whole:
            encoded.append(ids[part])
            continue
        for section, _ in pieces(FIRST_CUT[metadata["tokenizer.ggml.pre"]], part):
            for word in regex.findall(GPT2, section):
                spelled = "".join(letters[b] for b in word.encode())
                encoded += [ids[piece] for piece in merge(spelled, ranks)]
    return encoded
