"""Reference fixtures for the Conformer, made by `transformers`.

Writes to models/tests/fixtures:
- conformer/: a tiny random Fast Conformer with a CTC head: `config.json`, `model.safetensors` (published names; f16, in
  which every value is exact) and `expected.safetensors`: frames of two clips, the encoder's states, logits, CTC losses, and
  the gradient of the mean loss for every parameter and for the frames, in f64.
- log_mel_normalised.safetensors: every third normalised frame of the audio in log_mel.safetensors.

    python tests/reference/conformer.py

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0.
"""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import ParakeetCTCConfig, ParakeetEncoderConfig, ParakeetFeatureExtractor, ParakeetForCTC

FIXTURES = Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures"

ENCODER = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
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


def write_model():
    """Writes the folder `conformer`."""
    torch.manual_seed(7)
    encoder = ParakeetEncoderConfig(**ENCODER)
    config = ParakeetCTCConfig(vocab_size=9, pad_token_id=8, encoder_config=encoder)
    network = ParakeetForCTC(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        for name, buffer in network.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.3)
            if name.endswith("running_var"):
                buffer.uniform_(0.3, 2)
        for value in list(network.parameters()) + list(network.buffers()):
            if value.is_floating_point():
                value.copy_(value.half().float())
    folder = FIXTURES / "conformer"
    folder.mkdir(exist_ok=True)
    config.save_pretrained(folder)
    state = {n: v.half().contiguous() if v.is_floating_point() else v for n, v in network.state_dict().items()}
    save_file(state, folder / "model.safetensors")

    network = network.double()
    frames = [torch.randn(1, n, 8, dtype=torch.float64, requires_grad=True) for n in CLIPS]
    states, logits, losses = [], [], []
    for clip, text in zip(frames, TEXTS):
        # The buffer has f32 frequencies. Frequencies in f64 give positions in full precision.
        network.encoder.encode_positions.inv_freq = (
            1.0 / 10000.0 ** (torch.arange(0, 16, 2, dtype=torch.float64) / 16)
        )
        encoded = network.encoder(clip).last_hidden_state
        clip_logits = network.ctc_head(encoded)[0]
        states.append(encoded[0])
        logits.append(clip_logits)
        log_probabilities = clip_logits.log_softmax(-1)[:, None]
        losses.append(
            torch.nn.functional.ctc_loss(
                log_probabilities, torch.tensor([text]), [len(clip_logits)], [len(text)], blank=8, reduction="sum"
            )
        )
    (sum(losses) / len(losses)).backward()
    expected = {
        "frames": torch.cat([clip[0] for clip in frames]).detach(),
        "states": torch.cat(states).detach(),
        "logits": torch.cat(logits).detach(),
        "losses": torch.stack(losses).detach(),
        "frames_gradient": torch.cat([clip.grad[0] for clip in frames]),
    }
    for name, parameter in network.named_parameters():
        expected[f"gradient.{name}"] = parameter.grad
    expected = {name: value.float().contiguous() for name, value in expected.items()}
    expected["lengths"] = torch.tensor(CLIPS)
    for i, text in enumerate(TEXTS):
        expected[f"text.{i}"] = torch.tensor(text)
    save_file(expected, folder / "expected.safetensors")


def write_normalised_frames():
    """Writes every third normalised frame of the audio."""
    samples = load_file(FIXTURES / "log_mel.safetensors")["samples"].numpy()
    extractor = ParakeetFeatureExtractor(feature_size=80)
    features = extractor(samples.astype(np.float32) / 32_768, sampling_rate=16_000, return_tensors="np")
    mask = features["attention_mask"][0].astype(bool)
    save_file({"frames": torch.tensor(np.asarray(features["input_features"][0])[mask][::3].copy())}, FIXTURES / "log_mel_normalised.safetensors")


write_model()
write_normalised_frames()
