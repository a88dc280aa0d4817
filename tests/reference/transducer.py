"""Reference fixtures for the transducer, made by `torchaudio` and `transformers`.

Writes to models/tests/fixtures/transducer:
- losses.safetensors: for 5 and for 40 classes, the logits of packed lattices (exact in f32), their sizes, the concatenated
  targets, each clip's loss by `torchaudio.functional.rnnt_loss`, and the gradient of the weighted sum of all losses.
- config.json, model.safetensors: a tiny random Fast Conformer with an RNN-T decoder (published names; f16, in which every
  value is exact).
- expected.safetensors: frames of two clips, the logits of their lattices, the losses, the gradient of the mean loss for
  every parameter in f64, and the tokens of the greedy search.

    python tests/reference/transducer.py

Made with Python 3.11, torch 2.15.0, torchaudio 2.11.0, transformers 5.24.0, safetensors 0.8.0.
"""

from pathlib import Path

import torch

# The two packages name different versions of CUDA, which the CPU does not use.
torch.version.cuda = "13.0"
import torchaudio
from safetensors.torch import save_file
from transformers import ParakeetEncoderConfig, ParakeetForRNNT, ParakeetRNNTConfig

FOLDER = Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures" / "transducer"

# Number of classes, index of the blank, number of frames of each clip, targets.
CASES = [
    (5, 0, [4, 1, 6, 3], [[1, 2, 2, 4], [3, 3], [], [4]]),
    (40, 39, [9, 5], [[5, 5, 0, 17, 38, 2], [8]]),
]

ENCODER = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "attention_bias": False,
    "conv_kernel_size": 5,
    "subsampling_factor": 4,
    "subsampling_conv_channels": 6,
    "num_mel_bins": 8,
    "activation_dropout": 0.0,
    "layerdrop": 0.0,
    "scale_input": True,
}
CLIPS = [41, 22]
TEXTS = [[3, 3, 1, 5], [2, 4]]
BLANK = 8


def rnnt(logits, target, blank):
    """Returns the loss of one clip with logits `[frames, labels + 1, classes]`."""
    return torchaudio.functional.rnnt_loss(
        logits[None].float(), torch.tensor([target], dtype=torch.int32), torch.tensor([logits.shape[0]], dtype=torch.int32),
        torch.tensor([len(target)], dtype=torch.int32), blank=blank, reduction="none",
    )[0]


def rnnt_f64(logits, target, blank):
    """The same in f64, for gradients of parameters: torchaudio computes in f32."""
    log_probabilities = logits.log_softmax(-1)
    previous = None
    for frame in log_probabilities:
        row = []
        for u in range(len(target) + 1):
            paths = []
            if previous is not None:
                paths.append(previous[u])
            elif u == 0:
                paths.append(torch.zeros((), dtype=logits.dtype))
            if u > 0:
                paths.append(row[u - 1] + frame[u - 1, target[u - 1]])
            row.append(torch.logsumexp(torch.stack(paths), 0))
        previous = [value + frame[u, blank] for u, value in enumerate(row)]
    return -previous[-1]


def write_losses():
    """Writes losses.safetensors."""
    torch.manual_seed(3)
    tensors = {}
    for classes, blank, frames, targets in CASES:
        sizes = [count * (len(target) + 1) for count, target in zip(frames, targets)]
        logits = (torch.randn(sum(sizes), classes) * 3).requires_grad_(True)
        lattices = [clip.view(count, -1, classes) for clip, count in zip(logits.split(sizes), frames)]
        weights = torch.tensor([1.0, -0.5, 2.0, 3.0][: len(frames)])
        losses = torch.stack([rnnt(lattice, target, blank) for lattice, target in zip(lattices, targets)])
        for loss, lattice, target in zip(losses, lattices, targets):
            exact = rnnt_f64(lattice.detach().double(), target, blank)
            assert abs(loss.item() - exact.item()) < 1e-4, (loss, exact)
        (losses * weights).sum().backward()
        expected = {"logits": logits, "losses": losses, "gradient": logits.grad, "weights": weights}
        tensors |= {f"{classes}.{name}": value.detach().float().contiguous() for name, value in expected.items()}
        tensors[f"{classes}.lengths"] = torch.tensor(frames)
        tensors[f"{classes}.targets"] = torch.tensor(sum(targets, []))
        tensors[f"{classes}.target_lengths"] = torch.tensor([len(target) for target in targets])
        tensors[f"{classes}.blank"] = torch.tensor([blank])
    save_file(tensors, FOLDER / "losses.safetensors")


def greedy(network, projected, max_symbols):
    """Returns the labels of a clip: the likeliest class at each state until the blank."""
    labels, cache = [], None
    hidden = network.decoder.lstm(network.decoder.embedding(torch.tensor([[BLANK]])))
    for state in projected:
        for _ in range(max_symbols):
            predicted = network.decoder.decoder_projector(hidden[0])[0, 0]
            label = network.joint(predicted, state).argmax().item()
            if label == BLANK:
                break
            labels.append(label)
            hidden = network.decoder.lstm(network.decoder.embedding(torch.tensor([[label]])), hidden[1])
    return labels


def write_model():
    """Writes the model and expected.safetensors."""
    torch.manual_seed(11)
    encoder = ParakeetEncoderConfig(**ENCODER)
    config = ParakeetRNNTConfig(
        vocab_size=9, decoder_hidden_size=12, num_decoder_layers=2, blank_token_id=BLANK, pad_token_id=0,
        max_symbols_per_step=3, encoder_config=encoder,
    )
    network = ParakeetForRNNT(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        for name, buffer in network.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.3)
            if name.endswith("running_var"):
                buffer.uniform_(0.3, 2)
        for value in list(network.parameters()) + list(network.buffers()):
            if value.is_floating_point():
                value.copy_(value.half().float())
    config.save_pretrained(FOLDER)
    state = {n: v.half().contiguous() if v.is_floating_point() else v for n, v in network.state_dict().items()}
    save_file(state, FOLDER / "model.safetensors")

    network = network.double()
    logits, losses, tokens = [], [], []
    frames = [torch.randn(1, n, 8, dtype=torch.float64) for n in CLIPS]
    for clip, text in zip(frames, TEXTS):
        # The buffer has f32 frequencies. Frequencies in f64 give positions in full precision.
        network.encoder.encode_positions.inv_freq = (
            1.0 / 10000.0 ** (torch.arange(0, 16, 2, dtype=torch.float64) / 16)
        )
        projected = network.encoder_projector(network.encoder(clip).last_hidden_state)
        predicted = network.decoder(torch.tensor([[BLANK] + text]))
        lattice = network.joint(predicted[:, None], projected[:, :, None])[0]
        logits.append(lattice.reshape(-1, 9))
        losses.append(rnnt_f64(lattice, text, BLANK))
        assert abs(losses[-1].item() - rnnt(lattice, text, BLANK).item()) < 1e-4
        with torch.no_grad():
            tokens.append(greedy(network, projected[0], 3))
    print([loss.item() for loss in losses], tokens)
    assert all(tokens)
    (sum(losses) / len(losses)).backward()
    expected = {
        "frames": torch.cat([clip[0] for clip in frames]),
        "logits": torch.cat(logits).detach(),
        "losses": torch.stack(losses).detach(),
    }
    for name, parameter in network.named_parameters():
        expected[f"gradient.{name}"] = parameter.grad
    expected = {name: value.float().contiguous() for name, value in expected.items()}
    expected["lengths"] = torch.tensor(CLIPS)
    for i, (text, greedy_tokens) in enumerate(zip(TEXTS, tokens)):
        expected[f"text.{i}"] = torch.tensor(text)
        expected[f"greedy.{i}"] = torch.tensor(greedy_tokens)
    save_file(expected, FOLDER / "expected.safetensors")


FOLDER.mkdir(exist_ok=True)
write_losses()
write_model()
