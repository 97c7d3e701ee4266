"""The classes of cyfa.hf: files, configs, the forward's options, and training, against cyfa.nn and transformers' own classes."""

import json
import os
import shutil
import subprocess

import cyfa
import pytest
import torch
from cyfa import hf, nn
from hf_models import ROUNDING, SMALL, VECTORS, greedy, ids_of, judge, make, rel
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, TrainingArguments, pipeline, set_seed

every_type = pytest.mark.parametrize("name", SMALL)
PROGRAM = os.environ.get("CYFA_PROGRAM", str(cyfa.library.parent / "cyfa"))


def same_bits(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(x.dtype == right[key].dtype and torch.equal(x, right[key]) for key, x in left.items())


def run(*command) -> str:
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


# The forward and its options.


@every_type
def test_forward(name):
    model, other, ids = make(name), judge(name), ids_of(3, 13)
    whole = other(ids).logits.detach()
    out = model(ids)
    assert rel(out.logits, whole) < ROUNDING and out.loss is None
    assert out.past_key_values.get_seq_length() == 13 and out.hidden_states is None
    assert rel(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, whole) < ROUNDING
    assert rel(model(ids, logits_to_keep=2).logits, whole[:, -2:]) < ROUNDING
    assert rel(model(ids, logits_to_keep=torch.tensor([0, 5])).logits, whole[:, [0, 5]]) < ROUNDING
    labels = ids.clone()
    labels[0, :4] = -100
    wanted = torch.nn.functional.cross_entropy(whole[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    assert abs(float(model(ids, labels=labels).loss.detach()) - float(wanted)) < 1e-5
    x, hidden = other.embeddings(ids), []
    for block in other.blocks:
        hidden.append(x)
        x = block(x)
    for a, b in zip(model(ids, output_hidden_states=True).hidden_states, [*hidden, x], strict=True):
        assert rel(a, b) < ROUNDING
    logits, cache = model(ids, return_dict=False)
    assert rel(logits, whole) < ROUNDING and isinstance(cache, hf.CyfaCache)


@every_type
def test_padding_on_either_side_changes_nothing(name):
    model, other, ids = make(name), judge(name), ids_of(4, 13)
    mask = torch.ones(4, 13, dtype=torch.long)
    mask[0, :5] = mask[1, 8:] = mask[2, [0, 4, 12]] = mask[3] = 0
    logits = model(ids, attention_mask=mask).logits
    for row in range(3):
        real = mask[row].bool()
        assert torch.equal(logits[row, real], other(ids[row : row + 1, real]).logits[0]), row
    assert not logits[mask == 0].any()
    packed = model(torch.cat([ids[0, :8], ids[1, :11]])[None], cu_seqlens=torch.tensor([0, 8, 19])).logits[0]
    assert rel(packed[:8], other(ids[:1, :8]).logits[0]) < ROUNDING and rel(packed[8:], other(ids[1:2, :11]).logits[0]) < ROUNDING


@every_type
def test_gradient_checkpointing_gives_the_same_gradients(name):
    model, ids = make(name), ids_of()
    judged = judge(name)
    judged(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()).loss.backward()
    wanted = {key: p.grad for key, p in judged.named_parameters()}
    scale = max(float(g.norm()) for g in wanted.values())
    for checkpointing in (False, True):
        model.train()
        for block in model.blocks:
            block.eval()  # no noise
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        out = model(ids, labels=ids)
        assert out.past_key_values is None  # in training
        out.loss.backward()
        for key, p in model.named_parameters():
            assert float((p.grad - wanted[key]).norm()) <= ROUNDING * max(float(p.grad.norm()), 1e-3 * scale), key


# Files.


@every_type
def test_saved_folders_keep_every_bit_and_other_readers_take_them(name, tmp_path):
    model, ids = make(name), ids_of()
    whole, shards = tmp_path / "whole", tmp_path / "shards"
    model.save_pretrained(whole)
    model.save_pretrained(shards, max_shard_size="10KB")
    assert (whole / "model.safetensors").is_file()
    assert not (shards / "model.safetensors").exists() and len(list(shards.glob("model-*.safetensors"))) > 1
    stored = {} if name == "blurry_window" else load_file(SMALL[name] / "model.safetensors")
    for folder in (whole, shards):
        again = hf.CyfaForCausalLM.from_pretrained(folder)
        assert type(again) is hf.CyfaForCausalLM and not again.training
        assert same_bits(again, model) and all(torch.equal(again.state_dict()[key], value) for key, value in stored.items())
        assert json.loads(again.config.text()) == json.loads(model.config.text())
        assert same_bits(nn.CausalLM.from_checkpoint(folder), model)
    assert rel(again(ids).logits, judge(name)(ids).logits) < ROUNDING
    if os.path.isfile(PROGRAM) and name != "blurry_window":
        shutil.copy(SMALL[name] / "expected.safetensors", shards)
        assert "0 failed" in run(PROGRAM, "verify", "model", shards)


def test_the_program_is_there():
    if not os.path.isfile(PROGRAM):
        pytest.skip(f"no program {PROGRAM}: build it with `make build`")


def test_auto_classes_find_the_types_of_this_package(tmp_path):
    architectures = {kind["model_type"]: kind["architecture"] for kind in nn.model_types()}
    for name in SMALL:
        keys = json.loads(nn.config_text(SMALL[name]))
        if keys["model_type"] not in ("llama", "mamba2", "mistral"):
            config = AutoConfig.for_model(**keys)
            assert type(config).__name__ == architectures[config.model_type].replace("ForCausalLM", "Config")
            assert isinstance(config, hf.CyfaConfig) and config.text() == make(name).config.text()
    model = AutoModelForCausalLM.from_pretrained(VECTORS / "cyclic_flow")
    assert type(model) is hf.CyclicFlowAttentionForCausalLM and isinstance(model, hf.CyfaForCausalLM)
    assert same_bits(model, make("cyclic_flow"))
    model.save_pretrained(tmp_path)
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path)) is type(model)
    assert type(AutoConfig.from_pretrained(tmp_path)) is hf.CyclicFlowAttentionConfig
    assert type(AutoModelForCausalLM.from_config(model.config)) is type(model)


def test_transformers_keeps_its_own_types():
    """A folder of the type llama is transformers' LLaMA to AutoModelForCausalLM and the same model to cyfa.hf."""
    theirs = AutoModelForCausalLM.from_pretrained(VECTORS / "transformer")
    assert type(theirs) is LlamaForCausalLM
    assert rel(make("transformer")(ids_of()).logits, theirs(ids_of()).logits) < ROUNDING


def test_a_saved_folder_leads_to_the_package(tmp_path, monkeypatch):
    """With trust_remote_code=True: the type is transformers' own, and the file beside the weights names the class."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    model = make("transformer")
    model.save_pretrained(tmp_path)
    led = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    assert type(led) is hf.CyfaForCausalLM and same_bits(led, model)
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path)) is LlamaForCausalLM


@every_type
def test_dtype_rounds_the_matrices_and_nothing_else(name, tmp_path):
    make(name).save_pretrained(tmp_path)
    model = hf.CyfaForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16, device_map="cpu")
    plain = make(name).state_dict()
    roles = {row["name"]: row["role"] for row in model.config.describe()["parameters"]}
    assert model.dtype == torch.bfloat16 and model.device.type == "cpu"
    for key, value in model.state_dict().items():
        wanted = plain[key].bfloat16() if roles[key] == "matrix" else plain[key]
        assert value.dtype == wanted.dtype and torch.equal(value, wanted), key
    model.save_pretrained(tmp_path / "half")
    for kept in ("auto", torch.bfloat16):
        assert same_bits(hf.CyfaForCausalLM.from_pretrained(tmp_path / "half", dtype=kept), model)
    placed = hf.CyfaForCausalLM.from_pretrained(tmp_path, device_map={"": "cpu"})
    assert same_bits(placed, make(name))


def test_a_folder_in_float16(tmp_path):
    """Read in the type it is stored in, as transformers does by default, and computed in float32."""
    rounded = make("cyclic_flow").half()
    rounded.save_pretrained(tmp_path)
    model = hf.CyfaForCausalLM.from_pretrained(tmp_path)
    assert model.dtype == torch.float16 and model.state_dict().keys() == rounded.state_dict().keys()
    other = nn.CausalLM.from_checkpoint(tmp_path, dtype=torch.float32).eval()
    assert rel(model(ids_of()).logits, other(ids_of()).logits) < ROUNDING
    out = model.generate(ids_of(1, 5), max_new_tokens=8, do_sample=False, eos_token_id=None)
    assert out[0].tolist() == greedy(other, ids_of(1, 5)[0].tolist(), 8)
    assert model._kept_engine._engine is not None


def test_tied_embeddings_are_stored_once(tmp_path):
    config = hf.CyfaConfig.from_pretrained(VECTORS / "cyclic_flow", tie_word_embeddings=True)
    model = hf.CyfaForCausalLM(config).eval()
    assert model.get_output_embeddings() is model.get_input_embeddings()
    assert "lm_head.weight" not in model.state_dict()
    model.save_pretrained(tmp_path)
    again = hf.CyfaForCausalLM.from_pretrained(tmp_path)
    assert same_bits(again, model)
    assert rel(nn.CausalLM.from_checkpoint(tmp_path).eval()(ids_of()).logits, again(ids_of()).logits) < ROUNDING


@every_type
def test_missing_weights_are_drawn_as_the_type_initialises_them(name, tmp_path):
    """A folder without one layer's weights: they are reported, and drawn, whether the model is made on the meta device or not."""
    model = make(name)
    lost = [key for key in model.state_dict() if ".1." in key]
    kept = {key: value for key, value in model.state_dict().items() if key not in lost}
    model.save_pretrained(tmp_path, state_dict=kept | {"extra.weight": torch.ones(2)})
    torch.manual_seed(0)
    again, said = hf.CyfaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert sorted(said["missing_keys"]) == sorted(lost) and list(said["unexpected_keys"]) == ["extra.weight"]
    table = {row["name"]: row for row in model.config.describe()["parameters"]}
    fresh = nn.CausalLM(json.loads(model.config.text()), seed=1).state_dict()
    for key, value in again.state_dict().items():
        if key in kept:
            assert torch.equal(value, kept[key]), key
            continue
        assert value.isfinite().all(), key
        constant = value.numel() > 1 and float(fresh[key].min()) == float(fresh[key].max())
        close = torch.equal(value, fresh[key]) if constant else float(value.abs().max()) < 10 * float(fresh[key].abs().max())
        assert close, table[key]


def test_configs():
    config = hf.CyfaConfig(model_type="gla", hidden_size=64, num_heads=2)
    assert config.hidden_size == 64 and config.num_hidden_layers == 24 and config.vocab_size == 32000
    assert hf.GLAConfig(hidden_size=64, num_heads=2).text() == config.text()
    assert json.loads(config.text()) == json.loads(hf.CyfaConfig(**json.loads(config.to_json_string())).text())
    assert hf.CyfaConfig().model_type == "cyclic_flow_attention"
    published = json.loads(nn.config_text("cyfa-400m"))
    read = hf.CyfaConfig(**published)
    assert all(getattr(read, key) == value for key, value in published.items())
    with pytest.raises(ValueError, match="num_slot"):
        hf.CyfaConfig(num_slot=3)
    with pytest.raises(ValueError, match="model_type is gla, wanted retnet"):
        hf.RetNetConfig(model_type="gla")


def test_the_vocabulary_keeps_its_size():
    model = make("cyclic_flow")
    assert model.resize_token_embeddings(24) is model.get_input_embeddings()
    with pytest.raises(ValueError, match="cannot be resized from 24 to 30 tokens"):
        model.resize_token_embeddings(30)


# Tokenizer, pipeline, training.


def bytes_model() -> hf.CyfaForCausalLM:
    set_seed(1)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 8, "num_slots": 8, "intermediate_size": 24}
    tokens = {"vocab_size": 258, "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 257, "tokenizer": "bytes"}
    return hf.CyfaForCausalLM(hf.CyfaConfig(**shape, **tokens)).eval()


def test_byte_tokenizer(tmp_path):
    tokenizer = hf.byte_tokenizer()
    text = "Ünder  the\n\tsea <s> </s>"
    assert tokenizer("Ü a\n").input_ids == list("Ü a\n".encode())
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(bytes_model().config.to_json_string())
    read = AutoTokenizer.from_pretrained(tmp_path)
    for each in (tokenizer, read):
        ids = each(text).input_ids
        assert each.decode(ids) == text and (each.bos_token_id, each.eos_token_id, each.padding_side) == (256, 257, "left")
        assert ids.count(256) == 1 and ids.count(257) == 1  # where the text has them


def test_pipeline(tmp_path):
    model, tokenizer = bytes_model(), hf.byte_tokenizer()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    write = pipeline("text-generation", model=str(tmp_path), device="cpu")
    prompts = ["The cat", "A longer prompt than that"]
    texts = write(prompts, max_new_tokens=6, do_sample=False, batch_size=2, return_tensors=True)
    other = nn.CausalLM.from_checkpoint(tmp_path).eval()
    for prompt, (text,) in zip(prompts, texts):
        ids = list(prompt.encode())
        for _ in range(6):
            ids.append(int(other(torch.tensor([ids])).logits[0, -1].argmax()))
        assert text["generated_token_ids"][-6:] == ids[-6:]
    (text,) = write("The cat", max_new_tokens=6, do_sample=False)
    assert text["generated_text"].startswith("The cat")


def test_trainer_decays_by_the_table_and_resumes_to_the_bit(tmp_path):
    text = torch.arange(24 * 17).remainder(7).view(24, 17)
    rows = [{"input_ids": row, "labels": row} for row in text]

    def trainer(folder):
        model = bytes_model()
        steps = {"max_steps": 6, "save_steps": 3, "logging_steps": 1, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
        how = {"learning_rate": 1e-2, "weight_decay": 0.1, "gradient_checkpointing": True, "seed": 5, "use_cpu": True}
        quiet = {"report_to": [], "disable_tqdm": True}
        return hf.CyfaTrainer(model, TrainingArguments(str(folder), **steps, **how, **quiet), train_dataset=rows)

    whole = trainer(tmp_path / "a")
    names = {row["name"] for row in whole.model.config.describe()["parameters"] if row["weight_decay"]}
    assert set(whole.get_decay_parameter_names(whole.model)) == names and 0 < len(names) < len(list(whole.model.parameters()))
    whole.train()
    losses = [entry["loss"] for entry in whole.state.log_history if "loss" in entry]
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.5
    shutil.copytree(tmp_path / "a/checkpoint-3", tmp_path / "b/checkpoint-3")
    rest = trainer(tmp_path / "b")
    rest.train(resume_from_checkpoint=True)
    assert rest.state.global_step == 6 and same_bits(rest.model, whole.model)
    assert same_bits(hf.CyfaForCausalLM.from_pretrained(tmp_path / "a/checkpoint-6"), whole.model)
