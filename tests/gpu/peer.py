"""Times of the training steps of `steps.rs` with PyTorch, eager and compiled.

Usage: peer.py [f32|bf16]. Needs torch with CUDA and transformers. Without them it prints SKIPPED.
"""
import statistics
import sys
import time

try:
    import torch
    from transformers import BertConfig, BertModel, WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder
except ImportError as error:
    sys.exit(f"SKIPPED: PyTorch: {error}")
if not torch.cuda.is_available():
    sys.exit("SKIPPED: PyTorch has no GPU")

precision = sys.argv[1] if len(sys.argv) > 1 else "f32"
torch.backends.cuda.matmul.allow_tf32 = False
torch.manual_seed(1)


class MiniLM(torch.nn.Module):
    """BERT with MiniLM's sizes, mean pooling and a score."""

    name = "MiniLM, 32 × 128 tokens"

    def __init__(self):
        super().__init__()
        config = BertConfig(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
        )
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.head = torch.nn.Linear(384, 1)
        self.register_buffer("ids", torch.randint(30522, (32, 128)))
        self.register_buffer("gold", torch.linspace(0, 1, 32))

    def forward(self):
        states = self.encoder(input_ids=self.ids).last_hidden_state
        scores = self.head(states.mean(1)).squeeze(-1).float()
        return torch.nn.functional.binary_cross_entropy_with_logits(scores, self.gold)


class Whisper(torch.nn.Module):
    """The encoder of Whisper large-v3."""

    name = "Whisper large-v3 encoder, 1 × 30 s"

    def __init__(self):
        super().__init__()
        config = WhisperConfig(
            num_mel_bins=128,
            d_model=1280,
            encoder_layers=32,
            encoder_attention_heads=20,
            encoder_ffn_dim=5120,
        )
        self.encoder = WhisperEncoder(config)
        self.register_buffer("frames", torch.sin(torch.arange(3000 * 128) * 0.01).reshape(1, 128, 3000))

    def forward(self):
        return self.encoder(self.frames).last_hidden_state.float().square().mean()


def measure(model, loss):
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, fused=True)
    times = []
    for step in range(13):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        value.item()
        torch.cuda.synchronize()
        if step >= 3:
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


for build in (MiniLM, Whisper):
    model = build().cuda().train()
    eager = measure(model, model)
    compiled = measure(model, torch.compile(model))
    print(f"torch {model.name:35} {precision:4} eager {eager:8.1f} ms, compiled {compiled:8.1f} ms")
    memory = torch.cuda.max_memory_allocated() / 2**20
    print(f"torch {model.name:35} {precision:4} peak {memory:.0f} MiB")
    torch.cuda.reset_peak_memory_stats()
