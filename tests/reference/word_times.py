"""Reference fixture for the times of Whisper's tokens, made by `transformers` in f64.

Writes models/tests/fixtures/whisper/alignment.safetensors for the random model in that folder (from whisper.py) and its
two clips: the attention weights of the alignment heads, the states where tokens begin, and the probabilities of the
tokens. Follows openai/whisper's `find_alignment`, with the median filter and dynamic time warping of `transformers`.

    python tests/reference/word_times.py

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import WhisperConfig, WhisperForConditionalGeneration
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

FOLDER = Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures" / "whisper"

# The first 30 of this model's 40 tokens are words.
END, PROMPT = 30, [31, 33, 36]
TEXTS = [[7, 9, 29, 4, 12, 9], [25, 5]]
# Number of states of each clip, with and without padding.
STATES = [(12, 10), (7, 7)]
HEADS = [[1, 0], [2, 3], [2, 1]]

config = WhisperConfig.from_pretrained(FOLDER)
model = WhisperForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
weights = {name: value.float() for name, value in load_file(FOLDER / "model.safetensors").items()}
model.load_state_dict(weights | {"proj_out.weight": weights["model.decoder.embed_tokens.weight"]})
model = model.double()
states = load_file(FOLDER / "expected.safetensors")["states"].double()

expected, start = {"heads": torch.tensor(HEADS), "prompt": torch.tensor(PROMPT)}, 0
for i, (text, (count, unpadded)) in enumerate(zip(TEXTS, STATES)):
    clip = states[start : start + count][None]
    start += count
    tokens = torch.tensor([[*PROMPT, *text, END]])
    with torch.no_grad():
        decoded = model.model.decoder(input_ids=tokens, encoder_hidden_states=clip, output_attentions=True)
        logits = model.proj_out(decoded.last_hidden_state)[0]
    # [heads, tokens, states]; renormalised over the states without padding.
    heads = torch.stack([decoded.cross_attentions[layer][0, head] for layer, head in HEADS])[..., :unpadded]
    heads = heads / heads.sum(-1, keepdim=True)
    heads = (heads - heads.mean(-2, keepdim=True)) / heads.std(-2, keepdim=True, unbiased=False)
    matrix = _median_filter(heads[None], 7)[0].mean(0)[len(PROMPT) - 1 : -1]
    rows, columns = _dynamic_time_warping(-matrix.numpy())
    starts = [int(columns[list(rows).index(row)]) for row in range(len(text) + 1)]
    probabilities = logits[len(PROMPT) - 1 :, :END].softmax(-1)[range(len(text)), text]
    expected[f"text.{i}"] = torch.tensor(text)
    expected[f"weights.{i}"] = matrix.contiguous()
    expected[f"starts.{i}"] = torch.tensor(starts)
    expected[f"probabilities.{i}"] = probabilities.contiguous()
    print(text, starts, probabilities.tolist())
save_file(expected, FOLDER / "alignment.safetensors")
