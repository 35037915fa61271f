"""A small transformer that learns the next token of made sequences: each goes up by one or two, modulo 16."""

import torch
from torch import nn


class Sequences(torch.utils.data.Dataset):
    """256 sequences of 12 tokens."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        begin, step = torch.randint(16, (1,), generator=generator), torch.randint(1, 3, (1,), generator=generator)
        return {"tokens": (begin + step * torch.arange(12)) % 16}


class Transformer(nn.Module):
    """One block with tied embeddings; (records, 12) tokens to (records, 12, 16) logits."""

    def __init__(self, width=32):
        super().__init__()
        self.token, self.place = nn.Embedding(16, width), nn.Embedding(12, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(width, 16, bias=False)
        self.out.weight = self.token.weight

    def forward(self, tokens):  # noqa: D102
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.out(self.block(self.token(tokens) + self.place(torch.arange(tokens.shape[1])), src_mask=mask))
