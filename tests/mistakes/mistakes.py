"""The mistakes that run.py makes: what newcomers and users of other trainers do."""

import ctypes
import json
from dataclasses import dataclass, field
from typing import Callable, Optional


@dataclass
class Mistake:
    what: str
    command: list
    code: int
    words: tuple = ()
    prepare: Optional[Callable] = None  # called with the folder; may return commands to run first
    environment: dict = field(default_factory=dict)
    starts_program: bool = False  # instead of running in a forked process


MISTAKES = []


def add(what, command, code, *words, prepare=None, environment=None, starts_program=False):
    command = command if isinstance(command, list) else command.split()
    MISTAKES.append(Mistake(what, command, code, words, prepare, environment or {}, starts_program))


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


TRAIN = "--config train.yaml --device cpu"


def config(text):
    """Writes train.yaml."""
    return lambda folder: (folder / "train.yaml").write_text(text) and None


def setting(line, section="training"):
    """Adds a line to a section of the right configuration."""

    def prepare(folder):
        path = folder / "train.yaml"
        path.write_text(path.read_text().replace(f"{section}:\n", f"{section}:\n  {line}\n"))

    return prepare


def top_level(line):
    return lambda folder: (folder / "train.yaml").open("a").write(line + "\n") and None


def data(text, name="data.json"):
    return lambda folder: (folder / name).write_text(text if isinstance(text, str) else json.dumps(text)) and None


def record(**changes):
    """One record, and what is wrong with it."""
    one = {"id": "r0", "image": "images/0.png",
           "conversations": [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A ramp."}]}
    one.update(changes)
    return data([{key: value for key, value in one.items() if value is not None}])


def file(name, content):
    def prepare(folder):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return prepare


# The command line.
add("no command at all", "", 2, "a command is missing")
add("the configuration without `--config`", "train.yaml", 2, "vlmtrain --config train.yaml")
add("a command that there is not: `finetune`", "finetune --config train.yaml", 2, "finetune: unknown command")
add("a configuration that is not there", "--config nowhere.yaml", 2, "nowhere.yaml: cannot be read")
add("a folder as configuration", "--config images", 2, "images: is a folder")
add("the data as configuration", "--config data.json", 2, "data.json: must contain sections of keys")
add("`--learning_rate 1e-5`", TRAIN + " --learning_rate 1e-5", 2, "written key=value: training.learning_rate=1e-5")
add("`--training.learning_rate 1e-5`", TRAIN + " --training.learning_rate 1e-5", 2, "written key=value: training.learning_rate=1e-5")
add("`--training.learning_rate=1e-5`", TRAIN + " --training.learning_rate=1e-5", 2, "written key=value: training.learning_rate=1e-5")
add("`learning_rate=1e-5` without its section", TRAIN + " learning_rate=1e-5", 2, "did you mean training.learning_rate?")
add("`training.learning_rate 1e-5` without `=`", TRAIN + " training.learning_rate 1e-5", 2, "without spaces: training.learning_rate=1e-5")
add("`training.learning_rate = 1e-5` with blanks", TRAIN + " training.learning_rate = 1e-5", 2, "an error in the configuration", "without spaces: training.learning_rate=1e-5")
add("`training.lr=1e-5`", TRAIN + " training.lr=1e-5", 2, "training.learning_rate")
add("`--batch_size 8`", TRAIN + " --batch_size 8", 2, "training.global_batch_size is the exact number of samples per step")
add("`--resume_from_checkpoint`", TRAIN + " --resume_from_checkpoint run/checkpoints/step-2", 2, "training.resume")
add("`--deepspeed ds.json`", TRAIN + " --deepspeed ds.json", 2, "--nproc-per-node")
add("`--device gpu`", "--config train.yaml --device gpu", 2, "must be auto, cpu, cuda, cuda:N or virtual:NAME")
if not has_driver():
    add("`--device cuda` without a driver", "--config train.yaml --device cuda", 5, "no NVIDIA driver", "to train on the CPU, set --device cpu")
add("`--device 0`", "--config train.yaml --device 0", 2, "must be auto, cpu, cuda, cuda:N or virtual:NAME")
add("two ranks that have nowhere to meet", TRAIN, 2, "WORLD_SIZE=2", "--nproc-per-node 2", environment={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"})
add("`--launch 3` of a global batch of 4", TRAIN + " --launch 3 training.global_batch_size=4", 2, "3 or 6")
add("`plan --gpu v100`", "plan --gpu v100", 2, "no code", "--gpu t4")
add("`plan --gpu \"RTX 9090\"`", ["plan", "--gpu", "RTX 9090"], 2, "RTX 9090: unknown", "--gpu-gb")
add("`plan --gpu a100`, of which there are two", "plan --gpu a100", 2, "ambiguous; choose one of a100-40, a100-80")
add("`plan --gpu-gb 24GB`", "plan --gpu-gb 24GB", 2, "--gpu-gb: must be a number, such as 24, not 24GB")
add("`plan --model` of the Hub", "plan --gpu-gb 24 --model llava-hf/llava-1.5-7b-hf", 4, "HF_HUB_OFFLINE forbids the network", "or use the preset llava-1.5-7b")
add("`plan --model` of a folder that is not there", "plan --gpu-gb 24 --model checkpoints/mine", 4, "not a folder on this machine")
add("`plan --model` of a folder that is not there, in one that is", "plan --gpu-gb 24 --model images/mine", 2, "the folder does not exist")
add("`plan --model` that nobody knows", "plan --gpu-gb 24 --model gpt4", 2, "available are", "smolvlm-256m")
add("`plan --images two`", "plan --gpu-gb 24 --images two", 2, "--images: must be an integer, such as 2, not two")
add("`init` of a preset that there is not", "init --preset llama-7b --out new", 2, "unknown preset", "smolvlm-256m")
add("`init` into a folder that is there", "init --preset smolvlm-tiny --out images", 2, "--out images: already exists")
add("`merge` of a checkpoint that is no adapter", "merge --adapter model --out merged", 4, "give the folder of an adapter")
add("`eval` without `data.eval`", "eval --config train.yaml --checkpoint model", 2, "data.eval: empty")
add("`generate` with an image that does not exist", "generate --checkpoint model --image nowhere.png --prompt What?", 2, "--image", "nowhere.png")
add("`generate` of a checkpoint that is not there", "generate --checkpoint nowhere --image images/0.png --prompt What?", 4, "nowhere: the folder does not exist")
add("`report` on a folder that is no run", "report images", 2, "has no config.yaml or metrics.jsonl")

# The configuration.
for line, here in {
        "per_device_train_batch_size: 4": "training.global_batch_size", "gradient_accumulation_steps: 8": "training.global_batch_size",
        "num_train_epochs: 3": "training.epochs", "fp16: true": "training.precision: fp16", "bf16: true": "training.precision: bf16",
        "gradient_checkpointing: true": "memory.recompute", "optim: adamw_bnb_8bit": "training.optimizer_states: 8bit",
        "lora_r: 16": "lora.rank", "warmup_steps: 100": "training.warmup_ratio", "max_frames: 8": "data.video_max_frames",
        "cutoff_len: 2048": "data.max_length", "deepspeed: ds_config.json": "--nproc-per-node",
        "load_in_4bit: true": "model.quantization: nf4", "report_to: wandb": "output.tensorboard",
        "save_total_limit: 3": "output.save_total_limit", "dataloader_num_workers: 4": "data.num_workers"}.items():
    add(f"`{line}`", TRAIN, 2, "train.yaml:6: unknown key", here, prepare=setting(line))
# Keys of the other trainers' own examples, in their sections: each is answered with its equivalent.
PEERS = {
    "LLaMA-Factory": {"model_name_or_path": "model.path", "video_max_pixels": "data.image_max_pixels", "finetuning_type": "lora.rank", "lora_target": "lora.target_modules",
                      "dataset": "data.train", "template": "data.chat_template", "cutoff_len": "data.max_length", "max_samples": "training.max_steps",
                      "preprocessing_num_workers": "data.num_workers", "overwrite_output_dir": "training.resume", "plot_loss": "output.tensorboard",
                      "ddp_timeout": "distributed.rendezvous_seconds", "val_size": "data.eval", "per_device_eval_batch_size": "training.eval_batch_size"},
    "axolotl": {"base_model": "model.path", "sequence_len": "data.max_length", "datasets": "data.train", "val_set_size": "data.eval", "lora_r": "lora.rank",
                "lora_target_modules": "lora.target_modules", "num_epochs": "training.epochs", "optimizer": "training.optimizer", "wandb_project": "output.tensorboard",
                "evals_per_epoch": "training.eval_steps", "saves_per_epoch": "output.save_steps", "pad_to_sequence_len": "nothing to set", "processor_type": "no equivalent"},
    "ms-swift": {"train_type": "lora.rank", "split_dataset_ratio": "data.eval", "torch_dtype": "training.precision", "freeze_vit": "model.freeze_vision_tower",
                 "freeze_aligner": "model.freeze_projector", "freeze_llm": "model.freeze_language_model", "vit_lr": "training.vision_learning_rate", "attn_impl": "nothing to set"},
    "Qwen2-VL-Finetune": {"model_id": "model.path", "lora_namespan_exclude": "lora.target_modules", "vision_lora": "lora.target_modules", "merger_lr": "training.projector_learning_rate",
                          "image_folder": "data.image_root", "max_pixels": "data.image_max_pixels", "nframes": "data.video_max_frames", "disable_flash_attn2": "nothing to set"},
    "TRL and Unsloth": {"max_seq_length": "data.max_length", "finetune_vision_layers": "model.freeze_vision_tower", "random_state": "training.seed",
                        "use_gradient_checkpointing": "memory.recompute", "assistant_only_loss": "data.train_on", "load_in_4bit": "model.quantization"},
    "NeMo Automodel": {"local_batch_size": "training.micro_batch_size", "ckpt_every_steps": "output.save_steps", "val_every_steps": "training.eval_steps", "dim": "lora.rank",
                       "match_all_linear": "lora.target_modules", "tp_size": "distributed.sharding", "path_or_dataset": "data.train", "betas": "training.adam_beta1"},
    "LLaVA and InternVL": {"mm_projector_lr": "training.projector_learning_rate", "conv_version": "data.chat_template", "data_path": "data.train", "model_max_length": "data.max_length",
                           "meta_path": "data.train", "conv_style": "data.chat_template", "use_llm_lora": "lora.rank", "max_dynamic_patch": "data.image_max_pixels", "image_aspect_ratio": "config.json"},
}
for trainer, keys in PEERS.items():
    add(f"keys of {trainer}", TRAIN, 2, f"{len(keys)} errors in the configuration",
        *[f"unknown key {key}; " for key in keys], *keys.values(),
        prepare=top_level("\n".join(f"{key}: 1" for key in keys)))
add("`model_name_or_path: …` at the top", TRAIN, 2, "train.yaml:10", "model.path", prepare=top_level("model_name_or_path: model"))
add("`output_dir: out` at the top", TRAIN, 2, "train.yaml:10", "output.dir", prepare=top_level("output_dir: out"))
add("indented with a tab", TRAIN, 2, "train.yaml:2: this line is indented with a tab", prepare=config("model:\n\tpath: model\ndata:\n\ttrain: data.json\n"))
add("a line that is indented otherwise", TRAIN, 2, "train.yaml:3", "indented differently", prepare=config("model:\n  path: model\n data:\n  train: data.json\n"))
add("no blank behind a colon", TRAIN, 2, "train.yaml:1: model is a section", "not path:model; write its keys below it", prepare=config("model:\n  path:model\ndata:\n  train: data.json\n"))
add("two YAML documents", TRAIN, 2, "train.yaml: contains 2 YAML documents", prepare=top_level("---\ntraining:\n  max_steps: 1"))
add("a key twice", TRAIN, 2, "train.yaml:8: training.max_steps occurs twice", prepare=setting("max_steps: 3"))
add("a section twice", TRAIN, 2, "training occurs twice", prepare=top_level("training:\n  epochs: 2"))
add("a key in the wrong section", TRAIN, 2, "did you mean training.epochs?", prepare=setting("epochs: 3", "data"))
add("a word where a number belongs", TRAIN + " training.learning_rate=small", 2, "must be a float, not small")
add("`training.precision: float16`", TRAIN + " training.precision=float16", 2, "must be one of bf16, fp16, fp32, not float16")
add("an unknown optimizer", TRAIN + " training.optimizer=adamw_8bit", 2, "training.optimizer: must be one of adamw, muon, not adamw_8bit")
add("Muon with 8-bit states", TRAIN + " training.optimizer=muon training.optimizer_states=8bit", 2,
    "training.optimizer_states: 8bit is not supported with the optimizer muon")
add("a pattern that matches nothing", [*TRAIN.split(), "training.no_weight_decay=[nrom]"], 2,
    "training.no_weight_decay: nrom matches no trained parameter")
add("two groups that claim one parameter",
    [*TRAIN.split(), "training.parameter_groups=[{parameters: q_proj, learning_rate: 1e-4}, {parameters: self_attn, weight_decay: 0}]"], 2,
    "matches entries 1 and 2")
add("a parameter group without settings", [*TRAIN.split(), "training.parameter_groups=[{parameters: q_proj}]"], 2, "entry 1: sets nothing")
add("LoRA+ without LoRA", TRAIN + " lora.loraplus_lr_ratio=16", 2, "lora.rank is 0, which disables LoRA")
add("a micro-batch that does not divide the batch", TRAIN + " training.global_batch_size=16 training.micro_batch_size=3", 2, "choose a divisor, or auto")
add("no `output.dir`", TRAIN, 2, "output.dir: the folder for the run", prepare=config("model:\n  path: model\ndata:\n  train: data.json\n"))
add("`output.dir` that is a file", TRAIN + " output.dir=data.json", 2, "it or one of its parents is a file")
add("NF4 without LoRA", TRAIN + " model.quantization=nf4", 2, "set lora.rank")
add("everything frozen", TRAIN + " model.freeze_vision_tower=true model.freeze_projector=true model.freeze_language_model=true", 2, "leave nothing to train")
add("a learning rate for what is frozen", TRAIN + " model.freeze_vision_tower=true training.vision_learning_rate=1e-5", 2, "training.vision_learning_rate", "model.freeze_vision_tower to false")
add("other settings in a used `output.dir`", TRAIN + " training.learning_rate=1e-3", 2, "training.learning_rate: was 1e-05, is 0.001", "training.resume=changed",
    prepare=lambda folder: [["--config", "train.yaml", "--device", "cpu"]])
add("more steps for a finished run", TRAIN + " training.max_steps=3", 2, "was 2, is 3", "training.resume=changed resumes with the new settings",
    prepare=lambda folder: [["--config", "train.yaml", "--device", "cpu"]])
add("LoRA for a run without", TRAIN + " lora.rank=4 training.resume=changed", 2, "lora.rank cannot change within a run", "model.path=run/checkpoints/step-2",
    prepare=lambda folder: [["--config", "train.yaml", "--device", "cpu"]])

# The checkpoint.
add("`model.path` of the Hub", TRAIN + " model.path=HuggingFaceTB/SmolVLM-256M-Instruct", 4, "HF_HUB_OFFLINE forbids the network", "vlmtrain download HuggingFaceTB/SmolVLM-256M-Instruct")
add("a GGUF file as `model.path`", TRAIN + " model.path=model.gguf", 4, "a GGUF file contains weights for inference", prepare=file("model.gguf", b"GGUF\3\0\0\0"))
add("the weights' file as `model.path`", TRAIN + " model.path=model/model.safetensors", 4, "is a file; give the folder that contains it")
add("a run's folder as `model.path`", TRAIN + " model.path=run output.dir=second", 4, "give its newest checkpoint: run/checkpoints/step-2",
    prepare=lambda folder: [["--config", "train.yaml", "--device", "cpu"]])
add("a folder without `config.json`", TRAIN + " model.path=images", 4, "images: has no config.json")
add("`~` in quotes", TRAIN + " model.path=~/model", 4, "the shell expands ~ only at the start of a word")
add("a model that is not supported", TRAIN + " model.path=text", 4, "model_type phi3 is not supported; supported: ",
    prepare=file("text/config.json", json.dumps({"model_type": "phi3", "architectures": ["Phi3ForCausalLM"]})))

# The data.
add("a folder as `data.train`", TRAIN + " data.train=images", 4, "images: is a folder")
add("a CSV as `data.train`", TRAIN + " data.train=data.csv", 4, "as in docs/reference/data-formats.md", prepare=file("data.csv", "image,question,answer\na.png,What?,It.\n"))
add("Parquet that is cut off", TRAIN + " data.train=data.parquet", 4, "data.parquet", prepare=file("data.parquet", b"PAR1\x15\x04\x15\x10PAR1"))
add("a pattern that matches nothing", TRAIN + " data.train=shards/*.tar", 4, "shards/*.tar: matches no file")
add("`data.train` that is not there", TRAIN + " data.train=data/train.json", 4, "data/train.json: cannot be read (No such file or directory)", "check the path")
add("`data.train` of the Hub", TRAIN + " data.train=HuggingFaceM4/the_cauldron", 4, "if it is a data set on the Hugging Face Hub, write hf://datasets/HuggingFaceM4/the_cauldron")
add("a comma too many in JSON", TRAIN, 4, "data.json: not valid JSON at line 1, column 48", prepare=data('[{"image": "images/0.png", "conversations": [],},]'))
add("an empty file", TRAIN, 4, "data.json: is empty", prepare=data(""))
add("an empty list", TRAIN, 4, "contains no samples", prepare=data("[]"))
add("empty `conversations`", TRAIN, 4, 'sample r0: its "conversations" is empty', prepare=record(conversations=[]))
add("no `conversations`", TRAIN, 4, 'has no "conversations" and no "messages"', prepare=record(conversations=None))
add("a record without an answer", TRAIN, 4, "nothing to learn", prepare=record(conversations=[{"from": "human", "value": "<image>What?"}]))
add("a role that there is not", TRAIN, 4, 'unknown role "bot"', prepare=record(conversations=[{"from": "bot", "value": "A ramp."}]))
add("an image that does not exist", TRAIN, 4, "images/missing.png", "data.image_root", prepare=record(image="images/missing.png"))
add("two `<image>` for one image", TRAIN, 4, "has 2 <image> placeholders for 1 image", prepare=record(conversations=[{"from": "human", "value": "<image><image>What?"}, {"from": "gpt", "value": "It."}]))
add("a web page with the name of an image", TRAIN, 4, "sample r0: images/0.png: not a JPEG, PNG, WebP, TIFF, HEIC or AVIF image but a web page",
    prepare=lambda folder: (folder / "images/0.png").write_text("<!DOCTYPE html><html>not found</html>") and None)
add("HEIC of a telephone", TRAIN, 4, "a damaged or truncated HEIC", prepare=lambda folder: (folder / "images/0.png").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic") and None)
add("an image from the web", TRAIN, 4, "save the image and give its path", prepare=record(image="https://example.com/a.png"))
add("every sample longer than `data.max_length`", TRAIN + " data.max_length=8", 4, "8 of 8 samples", "raise it")
# The answer has the memory of the program itself.
add("less memory than the model takes", TRAIN + " memory.limit_gb=0.1", 3, "memory.limit_gb=", starts_program=True)
