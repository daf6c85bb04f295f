# tools/bench/torch_models.py — transformers' models on attune and on torch's attention: host time of a generated token and
# of a training step, as a whole, a layer, and by phase; time of whole training steps
"""
  torch_models.py [--impl sdpa,attune] [--rounds 3] [--device cuda|cpu] [--what generate,step,train] [--threads 1]
                  [--model llama,gemma2,gpt_oss] [--dropout 0.1]

Each round is a fresh process, in which the implementations take turns; the first of a turn changes from round to round.
Numbers are medians over a round, then over rounds. `us` of the host are until the call returns; the GPU is waited for
before each, so that its queue is empty.

On a busy CPU, --cpu-time counts the time of the calling thread, not of the clock on the wall.

generate: ms_per_token of model.generate, as a user waits for it; then a decode loop over the same cache by hand:
  host_us_per_token, and of it attention_us_per_layer (the attention function of transformers' interface),
  mask_us_per_token (its mask function), and on a GPU kernels_per_token and attention's kernels with their device time.
step: us_per_layer of a forward and a backward: a model with eight layers more beside one with two, in each turn.
  `more` is the median over turns of the difference in a turn.
train: ms of a forward and of a backward until the GPU has ended, of one model that changes its implementation from turn
  to turn, in training mode with --dropout of attention's probabilities. Implementations that refuse the model are left
  out. Without dropout, how far loss and gradients are from those of the first implementation.
"""
import argparse
import collections
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
import warnings

IMPLEMENTATIONS = "sdpa,attune"
FAMILIES = {
    "llama": {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128},
    "gemma2": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 1024},
    "gpt_oss": {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 64, "sliding_window": 128,
                "num_local_experts": 4, "num_experts_per_tok": 2},
}


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impl", default=IMPLEMENTATIONS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--what", default="generate,step")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", default="llama")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--prompts", default="1x128,1x4096,16x1024", help="batch x length")
    parser.add_argument("--steps", default="1x512", help="batch x length of training steps")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5, help="of each implementation in a round")
    parser.add_argument("--no-profile", action="store_true")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


now = time.perf_counter


def clock(wait):
    wait()
    return now()


def pairs(text):
    return [tuple(int(n) for n in one.split("x")) for one in text.split(",") if one]


class Round:
    """One process's measurements: lists of numbers by what they are."""

    def __init__(self, o):
        import torch
        import transformers

        import attune.hf
        attune.hf.enable()
        self.o, self.torch, self.transformers = o, torch, transformers
        self.family = ""
        self.names = o.impl.split(",")
        if o.child % 2:
            self.names.reverse()
        self.cuda = o.device == "cuda"
        self.wait = torch.cuda.synchronize if self.cuda else lambda: None
        self.found = collections.defaultdict(list)
        self.spent = None  # seconds by phase, while it is measured
        torch.set_num_threads(o.threads)
        transformers.logging.set_verbosity_error()
        warnings.simplefilter("ignore")

    def note(self, of, implementation, name, number):
        self.found[f"{self.family} {of}|{implementation}|{name}"].append(number)

    def model(self, implementation, layers):
        sizes = {"hidden_size": 2048, "intermediate_size": 4096, "vocab_size": 32000, **FAMILIES[self.family]}
        if not self.cuda:
            sizes |= {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 128, "num_attention_heads": 8,
                      "num_key_value_heads": 2, "head_dim": 16}
        self.torch.manual_seed(0)
        config = self.transformers.AutoConfig.for_model(self.family, num_hidden_layers=layers, pad_token_id=0,
                                                        max_position_embeddings=32768,
                                                        attention_dropout=self.o.dropout, **sizes)
        dtype = self.torch.bfloat16 if self.cuda else self.torch.float32
        return self.transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation,
                                                                  dtype=dtype).to(self.o.device)

    @contextlib.contextmanager
    def phases(self, implementation):
        """Times the attention and mask functions of transformers' tables meanwhile."""
        t = self.transformers
        tables = [("attention", t.AttentionInterface), ("mask", t.AttentionMaskInterface)]
        spent = self.spent = collections.Counter()
        own = []
        for phase, table in tables:
            function = table._global_mapping[implementation]

            def timed(*args, phase=phase, function=function, **kwargs):
                begin = now()
                made = function(*args, **kwargs)
                spent[phase] += now() - begin
                return made

            own.append((table, function))
            table._global_mapping[implementation] = timed
        try:
            yield spent
        finally:
            for table, function in own:
                table._global_mapping[implementation] = function

    # ---- generation

    def generate(self, batch, length):
        torch, o = self.torch, self.o
        of = f"generate {batch} x {length}"
        ids = torch.randint(0, 100, (batch, length), device=o.device)
        models = {name: self.model(name, o.layers).eval() for name in self.names}
        logits = {}
        for turn in range(o.turns + 1):
            for name, model in models.items():
                begin = clock(self.wait)
                made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=o.tokens,
                                      min_new_tokens=o.tokens, do_sample=False, pad_token_id=0, use_cache=True,
                                      output_logits=True, return_dict_in_generate=True)
                took = clock(self.wait) - begin
                if turn:
                    self.note(of, name, "ms_per_token", took * 1e3 / o.tokens)
                logits[name] = made.logits[0].float()
        for turn in range(o.turns):
            for name, model in models.items():
                self.decode(of, name, model, ids, phases=False)
                self.decode(of, name, model, ids, phases=True)
        for name, model in models.items():
            if "sdpa" in logits:
                apart = (logits[name] - logits["sdpa"]).norm() / logits["sdpa"].norm()
                self.note(of, name, "first_logits_apart", apart.item())
            if self.cuda and not o.no_profile:
                self.kernels(of, name, model, ids)

    def decode(self, of, name, model, ids, phases):
        """A loop of tokens; what a loop costs beside the model is not measured."""
        torch = self.torch
        with torch.no_grad(), self.phases(name) if phases else contextlib.nullcontext() as spent:
            for token, run in enumerate(self.tokens(model, ids)):
                if spent is not None:
                    spent.clear()
                begin = clock(self.wait)
                run()
                took = now() - begin
                if token < 4:
                    continue
                if spent is None:
                    self.note(of, name, "host_us_per_token", took * 1e6)
                else:
                    self.note(of, name, "attention_us_per_layer", spent["attention"] * 1e6 / self.o.layers)
                    self.note(of, name, "mask_us_per_token", spent["mask"] * 1e6)
                    self.note(of, name, "rest_us_per_token", (took - sum(spent.values())) * 1e6)

    def tokens(self, model, ids):
        """Calls that compute one token each."""
        torch = self.torch
        cache, mask = self.transformers.DynamicCache(config=model.config), torch.ones_like(ids)
        model(ids, attention_mask=mask, past_key_values=cache, logits_to_keep=1)
        token = ids[:, -1:]
        for _ in range(self.o.tokens):
            mask = torch.cat([mask, mask.new_ones(len(ids), 1)], -1)
            yield lambda: model(token, attention_mask=mask, past_key_values=cache, logits_to_keep=1)

    def kernels(self, of, name, model, ids):
        """What one token launches."""
        torch = self.torch
        from torch.profiler import ProfilerActivity, profile
        with torch.no_grad():
            runs = self.tokens(model, ids)
            for _ in range(8):
                next(runs)()
            run = next(runs)
            self.wait()
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
                run()
                self.wait()
        events = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        self.note(of, name, "kernels_per_token", len(events))
        for e in events:
            if any(part in e.name.lower() for part in ("attune", "flash", "attention", "fmha", "sdpa", "cudnn")):
                self.note(of, name, f"device us of {e.name[:60]}", e.time_range.elapsed_us())

    # ---- a training step

    def step(self, batch, length):
        """The difference between deep and shallow models is the layers' alone."""
        torch, o = self.torch, self.o
        of, more = f"step {batch} x {length}", 8
        ids = torch.randint(0, 100, (batch, length), device=o.device)
        models = {(name, n): self.model(name, n).train() for n in (2, 2 + more) for name in self.names}
        for turn in range(8 * o.turns + 3):
            took = {}
            # In a fixed order the first deep model after a shallow one would find warmer caches, worth 60 us a layer.
            for at, model in random.sample(list(models.items()), len(models)):
                begin = clock(self.wait)
                loss = model(input_ids=ids, labels=ids, use_cache=False).loss
                forward = now()
                again = clock(self.wait)
                loss.backward()
                took[at] = (forward - begin, now() - again)
                model.zero_grad(set_to_none=True)
            if turn < 3:
                continue
            layers = {}
            for name in self.names:
                forward, backward = (1e6 * (took[name, 2 + more][i] - took[name, 2][i]) / more for i in (0, 1))
                layers[name] = {"forward": forward, "backward": backward, "both": forward + backward}
            for what in ("forward", "backward", "both"):
                for name in self.names:
                    self.note(of, name, f"{what}_us_per_layer", layers[name][what])
                if len(layers) == 2:
                    first, second = self.o.impl.split(",")
                    self.note(of, "more", f"{what}_us_per_layer", layers[second][what] - layers[first][what])


    def train(self, batch, length):
        """One model, so that its weights are the same ones."""
        of = f"train {batch} x {length}"
        ids = self.torch.randint(0, 100, (batch, length), device=self.o.device)
        model = self.model("eager", self.o.layers).train()
        names = list(self.names)
        first = None
        for turn in range(self.o.turns + 2):
            for name in list(names):
                model.zero_grad(set_to_none=True)
                try:
                    model.set_attn_implementation(name)
                    begin = clock(self.wait)
                    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
                    between = clock(self.wait)
                    loss.backward()
                    end = clock(self.wait)
                except (ValueError, NotImplementedError, RuntimeError) as error:
                    print(f"{self.family}: {name} refuses: {error}", file=sys.stderr)
                    names.remove(name)
                    continue
                if turn == 0 and not self.o.dropout:
                    made = [loss.detach().float(), *[p.grad.float() for p in model.parameters() if p.grad is not None]]
                    first = first or made
                    self.note(of, name, "loss_apart", (made[0] - first[0]).abs().item())
                    self.note(of, name, "gradients_apart", max([((a - b).norm() / b.norm()).item()
                                                                for a, b in zip(made[1:], first[1:]) if b.norm() > 0]))
                if turn >= 2:  # before, they compile
                    self.note(of, name, "forward_ms", (between - begin) * 1e3)
                    self.note(of, name, "backward_ms", (end - between) * 1e3)
                    self.note(of, name, "both_ms", (end - begin) * 1e3)


def child(o):
    global now
    now = time.thread_time if o.cpu_time else now
    here = Round(o)
    for here.family in o.model.split(","):
        for what, sizes, measure in (("generate", o.prompts, here.generate), ("step", o.steps, here.step),
                                     ("train", o.steps, here.train)):
            for batch, length in pairs(sizes if what in o.what.split(",") else ""):
                measure(batch, length)
    print("FOUND" + json.dumps({key: statistics.median(numbers) for key, numbers in here.found.items()} |
                               {f"{key}|count": len(numbers) for key, numbers in here.found.items()
                                if "|device us" in key}))


def main(o):
    rounds = []
    for number in range(o.rounds):
        done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--child", str(number)], text=True,
                              stdout=subprocess.PIPE, env=os.environ)
        line = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
        if not line:
            sys.exit(f"round {number} failed:\n{done.stdout}")
        rounds.append(json.loads(line[0][len("FOUND"):]))
    table = collections.defaultdict(dict)
    for key in dict.fromkeys(key for one in rounds for key in one):
        of, name, what = key.split("|", 2)
        table[of, what][name] = statistics.median([one[key] for one in rounds if key in one])
    for (of, what), row in table.items():
        line = {"of": of, "what": what, **{name: float(f"{number:.4g}") for name, number in row.items()}}
        if len(row) == 2 and what.endswith(("per_token", "per_layer")) and "kernels" not in what:
            first, second = o.impl.split(",")[:2]
            line["more"] = float(f"{row[second] - row[first]:.3g}")
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    given = options()
    main(given) if given.child is None else child(given)
