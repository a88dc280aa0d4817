"""Reference fixtures for quantised weights, made by the published tools.

Writes to models/tests/fixtures/quantised:
- `model.safetensors`: for each method a small layer in codes, under the names of the tool.
- `expected.safetensors`: the weights that the tools compute from the codes in f32.

    python tests/reference/quantised.py AUTOAWQ

`AUTOAWQ` is the unpacked source of autoawq, of which only three files are loaded.

Made with Python 3.11, torch 2.15.0, transformers 5.24.0, bitsandbytes 0.50.2, compressed-tensors 0.20.1, auto-gptq 0.7.1,
autoawq 0.2.9, safetensors 0.8.0.
"""

import importlib.util
import sys
import types
from pathlib import Path

import torch
from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_dequant, int8_vectorwise_quant, quantize_4bit
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

FOLDER = Path(__file__).resolve().parents[2] / "models" / "tests" / "fixtures" / "quantised"
TENSORS, EXPECTED = {}, {}


def values(rows, columns):
    numbers = torch.arange(rows * columns, dtype=torch.float32)
    return ((numbers**2 * 0.013).sin() * (1 + numbers % 7)).view(rows, columns)


def add(method, expected, **tensors):
    EXPECTED[f"{method}.weight"] = expected.float().contiguous()
    TENSORS.update({f"{method}.{name.replace('weight__', 'weight.')}": tensor for name, tensor in tensors.items()})


def compressed_tensors(method, bits, kind, strategy):
    """One scale for the whole weight, or for each row."""
    weight = values(8, 12)
    args = QuantizationArgs(num_bits=bits, type=kind, strategy=strategy, symmetric=True)
    largest = 448 if kind == "float" else 127
    peaks = weight.abs().amax(1, keepdim=True) if strategy == "channel" else weight.abs().amax().view(1)
    scale = (peaks / largest).bfloat16()
    dtype = torch.float8_e4m3fn if kind == "float" else torch.int8
    codes = quantize(weight, scale.float(), torch.zeros_like(scale), args, dtype=dtype)
    add(method, dequantize(codes, scale.float(), args=args, dtype=torch.float32), weight=codes, weight_scale=scale)


def fp8_blocks(method, rows, columns):
    """One scale for each 128 x 128 block, as DeepSeek's models have."""
    weight = values(rows, columns)
    scale = 0.01 * torch.arange(1, -(-rows // 128) * -(-columns // 128) + 1).view(-(-rows // 128), -(-columns // 128))
    codes = (weight * 20).to(torch.float8_e4m3fn)
    expected = _dequantize_fp8_weight(codes, scale, [128, 128], torch.float32)
    add(method, expected, weight=codes, weight_scale_inv=scale)


def bitsandbytes():
    codes, scale, _ = int8_vectorwise_quant(values(8, 12).half())
    tensors = {"weight": codes, "SCB": scale, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    add("bnb_int8", int8_vectorwise_dequant(codes, scale), **tensors)
    for method, kind, nested in [("bnb_nf4", "nf4", False), ("bnb_nf4_nested", "nf4", True), ("bnb_fp4", "fp4", True)]:
        codes, state = quantize_4bit(values(20, 24), blocksize=64, quant_type=kind, compress_statistics=nested)
        parts = {f"weight__{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
        add(method, dequantize_4bit(codes, state), weight=codes, **parts)


def load(path):
    """One file of a package whose other files need other versions of transformers."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def linear(weight):
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight
    return layer


def groups(weight, size):
    """Scales and zero points of groups of columns, `[out, groups]`, for 4-bit codes."""
    parts = weight.view(weight.shape[0], -1, size)
    low, high = parts.amin(2).clamp(max=-0.1), parts.amax(2).clamp(min=0.1)
    scales = ((high - low) / 15).half().float()
    return scales, (-low / scales).round().clamp(1, 15)


def gptq():
    folder = Path(importlib.util.find_spec("auto_gptq").submodule_search_locations[0])
    QuantLinear = load(folder / "nn_modules/qlinear/qlinear_cuda.py").QuantLinear
    weight = values(32, 64)
    scales, zeros = groups(weight, 32)
    order = torch.arange(64, dtype=torch.int32) * 5 % 64 // 32
    layer = QuantLinear(4, 32, 64, 32, bias=False)
    layer.pack(linear(weight), scales.clone(), zeros.clone(), order)
    # The layer multiplies in its own type, so the identity gives the weight.
    expected = layer.float().forward(torch.eye(64)).t()
    names = ["qweight", "qzeros", "scales", "g_idx"]
    buffers = {name: getattr(layer, name) for name in names}
    buffers["scales"] = buffers["scales"].half()
    add("gptq", expected, **buffers)


def awq(folder):
    package = types.ModuleType("awq")
    package.__path__ = [str(Path(folder) / "awq")]
    sys.modules["awq"] = package
    modules = types.ModuleType("awq.modules")
    modules.__path__ = []
    sys.modules["awq.modules"] = modules
    gemm = load(Path(folder) / "awq/modules/linear/gemm.py")
    from awq.utils.packing_utils import dequantize_gemm

    weight = values(32, 64)
    scales, zeros = groups(weight, 32)
    layer = gemm.WQLinear_GEMM.from_linear(linear(weight), 4, 32, scales=scales.t(), zeros=zeros.t())
    expected = dequantize_gemm(layer.qweight, layer.qzeros, layer.scales.float(), 4, 32).t()
    add("awq", expected, qweight=layer.qweight, qzeros=layer.qzeros, scales=layer.scales)


def main():
    compressed_tensors("fp8_tensor", 8, "float", "tensor")
    compressed_tensors("fp8_channel", 8, "float", "channel")
    compressed_tensors("int8_channel", 8, "int", "channel")
    fp8_blocks("fp8_rows", 130, 4)
    fp8_blocks("fp8_columns", 3, 130)
    bitsandbytes()
    gptq()
    awq(sys.argv[1])
    FOLDER.mkdir(exist_ok=True)
    save_file({name: value.contiguous() for name, value in TENSORS.items()}, FOLDER / "model.safetensors")
    save_file(EXPECTED, FOLDER / "expected.safetensors")


if __name__ == "__main__":
    main()
