"""lm-evaluation-harness, offline: this package's tasks on the small sets of eval_data, and the command as users type it."""

import configparser
import functools
import json
import math
import os
import pathlib
import re
import subprocess
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import cyfa.lm_eval
import cyfa_autoload
import lm_eval
import pytest
import torch
from cyfa import hf, nn
from cyfa.lm_eval import tasks
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, LlamaForCausalLM, set_seed

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

from shared_folder import shared_folder  # noqa: E402: found by the line above

SHARED = shared_folder() / "eval"
DATA = pathlib.Path(__file__).resolve().parent / "eval_data"
TOKENS = {"vocab_size": 258, "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 257, "initializer_range": 0.3}
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "max_position_embeddings": 64}
LLAMA = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2} | SHAPE | TOKENS
CYFA = {"model_type": "cyclic_flow_attention", "num_heads": 2, "head_dim": 16, "num_slots": 8} | SHAPE | TOKENS
BYTES, LENGTH = hf.byte_tokenizer(), 64


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A saved model with its tokenizer for each of LLAMA and CYFA."""
    made = {}
    for config in (LLAMA, CYFA):
        made[config["model_type"]] = folder = tmp_path_factory.mktemp(config["model_type"])
        set_seed(2)
        hf.CyfaForCausalLM(hf.CyfaConfig(**config)).save_pretrained(folder)
        BYTES.save_pretrained(folder)
    return made


def evaluate(model, names):
    manager = TaskManager(include_path=str(cyfa.lm_eval.folder()), include_defaults=False, metadata={"data": str(DATA)})
    model = HFLM(pretrained=model, tokenizer=BYTES, backend="causal", batch_size=3, max_length=LENGTH)
    return lm_eval.simple_evaluate(model, tasks=names, task_manager=manager, bootstrap_iters=0)["results"]


def test_a_llama_scores_as_transformers_own_class_does(folders):
    names = ["cyfa_arc_easy", "cyfa_hellaswag", "cyfa_lambada_openai", "cyfa_piqa", "cyfa_wikitext", "cyfa_winogrande"]
    theirs = AutoModelForCausalLM.from_pretrained(folders["llama"])
    assert type(theirs) is LlamaForCausalLM
    wanted = evaluate(theirs, names)
    got = evaluate(hf.CyfaForCausalLM.from_pretrained(folders["llama"]), names)
    assert sorted(got) == sorted(wanted) == names
    for name in names:
        figures = {key: value for key, value in wanted[name].items() if isinstance(value, float) and "stderr" not in key}
        assert figures
        for key, value in figures.items():
            if key.startswith("acc"):
                assert got[name][key] == value, (name, key)
            else:
                assert got[name][key] == pytest.approx(value, rel=1e-5), (name, key)
    assert 1 < wanted["cyfa_wikitext"]["bits_per_byte,none"] < 20 and wanted["cyfa_arc_easy"]["sample_len"] == 8


# The judge of the command: log-probabilities of cyfa.nn on one text at a time.


@torch.no_grad()
def scored(model, context: bytes, text: bytes) -> float:
    """Log-probability of `text` after `context`, in bytes or longer tokens, of which the model sees the last LENGTH."""
    ids = torch.tensor([*context, *text])[-LENGTH - 1 :]
    log_p = model(ids[None, :-1]).logits[0].log_softmax(-1)
    return float(log_p[-len(text) :].gather(1, ids[-len(text) :, None]).sum())


def arc(model) -> dict:
    hits = [0, 0]
    documents = [json.loads(line) for line in (DATA / "arc_easy.jsonl").read_text().splitlines()]
    for doc in documents:
        scores = [scored(model, doc["query"].encode(), f" {choice}".encode()) for choice in doc["choices"]]
        per_character = [score / len(choice) for score, choice in zip(scores, doc["choices"])]
        for n, each in enumerate((scores, per_character)):
            hits[n] += each.index(max(each)) == doc["gold"]
    return {"acc,none": hits[0] / len(documents), "acc_norm,none": hits[1] / len(documents)}


def wikitext(model) -> dict:
    total = words = size = 0
    text = (DATA / "wikitext2_test.raw").read_text()
    head, *titles = re.split(r"(?m)^( = [^=].*$)", text)
    assert not head.strip()
    for page in map("".join, zip(titles[::2], titles[1::2])):
        page = page.removesuffix("\n") if "Harbour" not in page else page
        ids = [256, *tasks.page_text({"page": page}).encode()]
        for start in range(0, len(ids) - 1, LENGTH):
            end = min(start + LENGTH, len(ids) - 1)
            # a window of LENGTH tokens of which those after `start` are scored, the last one reaching back
            begin = max(0, end - LENGTH)
            with torch.no_grad():
                log_p = model(torch.tensor([ids[begin:end]])).logits[0].log_softmax(-1)
            total += float(log_p.gather(1, torch.tensor(ids[begin + 1 : end + 1])[:, None])[start - begin :].sum())
        words, size = words + len(re.split(r"\s+", page)), size + len(page.encode())
    return {"word_perplexity,none": math.exp(-total / words), "bits_per_byte,none": -total / size / math.log(2)}


@functools.cache
def entry_points() -> str:
    """The package's entry points, as an installation would announce them."""
    text = (ROOT / "pyproject.toml").read_text()
    (line,) = re.search(r'^\[project\.entry-points\."torch\.backends"\]\n(.+)$', text, re.MULTILINE).groups()
    parser = configparser.ConfigParser()
    parser.read_string(f"[torch.backends]\n{line}")
    return "[torch.backends]\n" + "".join(f"{name} = {value.strip(chr(34))}\n" for name, value in parser["torch.backends"].items())


@pytest.fixture
def installed(tmp_path):
    """The environment of a process in which the package counts as installed."""
    info = tmp_path / "site/cyfa-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cyfa\nVersion: 0\n")
    (info / "entry_points.txt").write_text(entry_points())
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(info.parent), str(ROOT / "python")])}


def run(command, environment) -> str:
    result = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_command(folders, installed, tmp_path):
    program = pathlib.Path(sys.executable).parent / "lm_eval"
    folder = folders["cyclic_flow_attention"]
    command = [program, "--model", "hf", "--model_args", f"pretrained={folder}", "--tasks", "cyfa_arc_easy,cyfa_wikitext"]
    command += ["--device", "cpu", "--include_path", cyfa.lm_eval.folder(), "--metadata", f"data={DATA}", "--output_path", tmp_path / "out"]
    run(command, installed)
    (path,) = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(path.read_text())["results"]
    model = nn.CausalLM.from_checkpoint(folder).eval()
    for name, wanted in (("cyfa_arc_easy", arc(model)), ("cyfa_wikitext", wikitext(model))):
        for key, value in wanted.items():
            assert results[name][key] == pytest.approx(value, rel=1e-4), (name, key)


# The published sets.

PUBLISHED = ["arc_challenge", "arc_easy", "drop_sample", "hellaswag", "lambada_openai", "nq_sample", "piqa", "squad_sample", "winogrande"]


def compare_with_the_program(tmp_path, names, limit):
    """Scores cyfa-4m by the tasks `names` of this package and of `cyfa eval`. Returns the figures by task and metric."""
    folder, length = ROOT / "models/cyfa-4m", 512
    tmp_path.mkdir()
    manager = TaskManager(include_path=str(cyfa.lm_eval.folder()), include_defaults=False, metadata={"data": str(SHARED)})
    model = HFLM(pretrained=str(folder), dtype="float32", device="cpu", batch_size=3, max_length=length)
    tasks_here = [f"cyfa_{name}" for name in names]
    found = lm_eval.simple_evaluate(model, tasks=tasks_here, task_manager=manager, limit=limit, bootstrap_iters=0)
    options = ["--data", SHARED, "--limit", limit, "--max-length", length, "--dtype", "fp32", "--json", tmp_path / "rows.json"]
    program = os.environ.get("CYFA_PROGRAM", str(cyfa.library.parent / "cyfa"))
    run([program, "eval", folder, *names, *options, "--out", tmp_path / "out", "-q"], os.environ)
    rows = [row for row in json.loads((tmp_path / "rows.json").read_text()) if row["table"] == "results"]
    figures = {(row["task"], row["metric"]): row["value"] for row in rows if row["task"] in names}
    assert {task for task, _ in figures} == set(names)
    for (task, metric), value in figures.items():
        assert found["results"][f"cyfa_{task}"][f"{metric},none"] == pytest.approx(value, rel=1e-4), (task, metric)
    for name in names:
        if name.endswith("_sample"):
            kept = map(json.loads, (tmp_path / f"out/samples_{name}.jsonl").read_text().splitlines()[1:])
            texts = {row["document"]: row.get("texts", [""])[0].strip() for row in kept}
            assert texts == {row["doc_id"]: row["filtered_resps"][0].strip() for row in found["samples"][f"cyfa_{name}"]}, name
    return figures


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared/eval; set CYFA_SHARED")
def test_every_published_set_has_a_task_with_the_figures_of_the_program(tmp_path):
    read = set(re.findall(r"[\w.]+\.(?:jsonl|raw|txt)", "".join(path.read_text() for path in cyfa.lm_eval.folder().glob("*.yaml"))))
    assert {path.name.removesuffix(".zst") for path in SHARED.glob("*.zst")} <= read
    figures = compare_with_the_program(tmp_path / "many", PUBLISHED, 4)
    assert figures["drop_sample", "contains"] == 0.25
    compare_with_the_program(tmp_path / "one", ["wikitext"], 1)


# The stand-ins that make it work (cyfa_autoload.py).

STAND_INS = """
import sys
from transformers import AutoConfig, AutoModelForCausalLM
assert "cyfa" not in sys.modules, "nothing needed cyfa"
gpt = AutoConfig.for_model("gpt2", n_layer=1, n_embd=8, n_head=1)
AutoModelForCausalLM.from_config(gpt)
assert "cyfa" not in sys.modules and not any(type(f).__module__ == "cyfa_autoload" for f in sys.meta_path)
small = AutoConfig.for_model("retnet", hidden_size=16, num_heads=2, num_hidden_layers=1)
config = AutoConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(type(small).__name__, type(config).__name__, type(model).__name__)
"""


def test_auto_classes_without_an_import(folders, installed):
    """transformers imports torch here, amid the import of its table of configs; lm_eval imports torch first."""
    said = run([sys.executable, "-c", STAND_INS, folders["cyclic_flow_attention"]], installed)
    assert said.split() == ["RetNetConfig", "CyclicFlowAttentionConfig", "CyclicFlowAttentionForCausalLM"]


def test_stand_ins_are_those_of_every_type():
    known = {kind["model_type"] for kind in nn.model_types()}
    assert sorted(cyfa_autoload.MODEL_TYPES) == sorted({"cyfa"} | known - {"llama", "mamba2", "mistral"})
    assert all(issubclass(CONFIG_MAPPING[model_type], hf.CyfaConfig) for model_type in cyfa_autoload.MODEL_TYPES)


# The tasks' documents.


def test_documents_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no folder with a.jsonl or b.jsonl: give --metadata data=FOLDER"):
        tasks.load(["a.jsonl", "b.jsonl"])
    with pytest.raises(FileNotFoundError, match="has no file a.jsonl, nor one with .zst"):
        tasks.load(["a.jsonl"], data=DATA)
    (tmp_path / "a.jsonl.zst").touch()
    monkeypatch.setattr(tasks, "infer_compression", lambda path: None)  # as without the package zstandard
    with pytest.raises(ValueError, match="a.jsonl.zst: nothing here decompresses it; pip install zstandard"):
        tasks.load(["a.jsonl"], data=tmp_path)
    with pytest.raises(ValueError, match="piqa_valid_labels.txt has 3 labels for the 8 documents of arc_easy.jsonl"):
        tasks.load(["arc_easy.jsonl"], data=DATA, labels="piqa_valid_labels.txt")


def test_pages_and_their_text():
    pages = tasks.load(["wikitext2_test.raw"], data=DATA, reader="pages")["test"]["page"]
    assert [page.split("\n")[0] for page in pages] == [" = The old mill = ", " = Harbour = "]
    text = tasks.page_text({"page": pages[0]})
    assert "wheel (made of oak) has turned for 1,200 weeks." in text and 'the miller\'s son says: "it sings".' in text
    assert "== The wheel ==" in text and "3.5 m wide; " in text


def test_hellaswag_and_winogrande_documents():
    docs = list(tasks.hellaswag(tasks.load(["hellaswag_valid.jsonl"], data=DATA)["test"]))
    assert docs[0]["query"] == "Baking bread: A woman kneads dough on a table. She"
    assert docs[0]["choices"][2] == " sings to the oven and leaves." and docs[0]["gold"] == 0
    assert docs[1]["query"] == "Rowing: Two men carry a boat to the water.. They push off. The men"
    doc = tasks.load(["winogrande_xl_valid.jsonl"], data=DATA)["test"][1]
    assert tasks.winogrande_fillings(doc) == ["Tom lent Max his bicycle because Tom", "Tom lent Max his bicycle because Max"]
    assert (tasks.winogrande_rest(doc), tasks.winogrande_gold(doc)) == ("had to go to town.", 1)


def test_questions_and_their_answers():
    whole = {"query": "Passage: x\nQuestion: y?\nAnswer:", "answers": [["5"], ["Rome", "Old Rome"]], "question": "y?"}
    alone = {"question": "who", "answers": ["Ann", "Ben"]}
    assert (tasks.question(whole), tasks.question(alone)) == (whole["query"], "Question: who\nAnswer:")
    assert (tasks.answers(whole), tasks.answers(alone)) == (["5", "Rome Old Rome"], ["Ann", "Ben"])
    assert tasks.answers({"query": "q", "answers_text": ["c"], "answers": ["d"]}) == ["c"]
    scores = {text: tasks.contains(whole, [text])["contains"] for text in (" in 1950", " in ROME old Rome.", " Rome", "")}
    assert list(scores.values()) == [1.0, 1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="a document has no answers: 'Question: who"):
        tasks.answers(alone | {"answers": []})
