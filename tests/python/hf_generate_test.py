"""Generation through transformers, and the cache, against loops over whole sequences that use neither."""

import copy
import pickle

import pytest
import torch
from cyfa.hf import CyfaCache
from hf_models import ROUNDING, SMALL, beam_search, greedy, ids_of, judge, make, next_logits, rel

every_type = pytest.mark.parametrize("name", SMALL)
PROMPTS = [[3, 7, 11, 5, 9, 2, 14], [8, 4], [20, 1, 13, 6]]


def left_padded(prompts):
    """ids and attention_mask [B, T] of prompts of different lengths. Padding is a token like any other: only the mask tells."""
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), 17)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def ran_steps(model) -> bool:
    """Whether generate() has prepared a step engine."""
    return model._kept_engine._engine is not None


@every_type
def test_greedy_equals_the_loop(name):
    model = make(name)
    for prompt in PROMPTS:
        out = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)
        assert out[0].tolist() == greedy(judge(name), prompt, 12)
    assert ran_steps(model)


@every_type
def test_left_padded_prompts_equal_each_alone_to_the_bit(name):
    model = make(name)
    options = {"max_new_tokens": 8, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    batch = model.generate(**left_padded(PROMPTS), **options)
    for row, prompt in enumerate(PROMPTS):
        alone = model.generate(torch.tensor([prompt]), **options)
        assert torch.equal(batch.sequences[row, -8:], alone.sequences[0, -8:])
        for t, (a, b) in enumerate(zip(batch.logits, alone.logits, strict=True)):
            assert torch.equal(a[row], b[0]), f"prompt {row}, new token {t}"


@every_type
def test_beam_search_equals_the_loop(name):
    model = make(name)
    out = model.generate(torch.tensor([PROMPTS[0]]), max_new_tokens=6, num_beams=3, num_return_sequences=3, do_sample=False)
    assert out.tolist() == beam_search(judge(name), PROMPTS[0], 6, 3)


def test_beam_search_of_left_padded_prompts():
    model = make("cyclic_flow")
    out = model.generate(**left_padded(PROMPTS), max_new_tokens=6, num_beams=3, do_sample=False)
    for row, prompt in enumerate(PROMPTS):
        assert out[row, -6:].tolist() == beam_search(judge("cyclic_flow"), prompt, 6, 3)[0][-6:]


@pytest.mark.parametrize("name", ["cyclic_flow", "transformer", "mamba2"])
def test_sampling_equals_the_loop_with_the_same_seed(name):
    model, loop = make(name), judge(name)
    torch.manual_seed(4)
    out = model.generate(torch.tensor([PROMPTS[0]]), max_new_tokens=20, do_sample=True, temperature=0.7, top_k=8)
    torch.manual_seed(4)
    ids = list(PROMPTS[0])
    for _ in range(20):
        logits = next_logits(loop, ids) / 0.7
        logits[logits < logits.topk(8).values[-1]] = -float("inf")
        ids.append(int(torch.multinomial(logits.softmax(0)[None], 1)))
    assert out[0].tolist() == ids
    again = model.generate(torch.tensor([PROMPTS[0]]), max_new_tokens=20, do_sample=True, temperature=0.7, top_k=8)
    assert not torch.equal(again, out)


def test_generation_ends_at_eos_row_by_row():
    model = make("cyclic_flow")
    texts = [greedy(judge("cyclic_flow"), prompt, 10)[len(prompt) :] for prompt in PROMPTS]
    end = texts[0][2]
    out = model.generate(**left_padded(PROMPTS), max_new_tokens=10, do_sample=False, eos_token_id=end, pad_token_id=0)
    for row, text in enumerate(texts):
        kept = text[: text.index(end) + 1] if end in text else text
        assert out[row, 7:].tolist() == (kept + [0] * 10)[: out.shape[1] - 7]


@every_type
def test_continuing_from_a_returned_cache(name):
    model, loop = make(name), judge(name)
    first = model.generate(torch.tensor([PROMPTS[0]]), max_new_tokens=5, do_sample=False, return_dict_in_generate=True)
    kept = copy.deepcopy(first.past_key_values)
    longer = torch.cat([first.sequences, torch.tensor([[6, 9, 6]])], 1)  # several new tokens on a filled cache
    wanted = greedy(loop, longer[0].tolist(), 6)
    for cache in (first.past_key_values, kept, None):
        out = model.generate(longer, past_key_values=cache, max_new_tokens=6, do_sample=False)
        assert out[0].tolist() == wanted


@pytest.mark.parametrize("name", ["cyclic_flow", "transformer"])
def test_continuing_a_left_padded_batch(name):
    """The mask of the second call covers the tokens in the cache too, and ends in padding of its own."""
    model, loop = make(name), judge(name)
    first = model.generate(**left_padded(PROMPTS), max_new_tokens=3, do_sample=False, return_dict_in_generate=True)
    new = [[5, 6, 7], [8], [9, 10]]
    more = left_padded(new)
    ids = torch.cat([first.sequences, more["input_ids"]], 1)
    mask = torch.cat([left_padded(PROMPTS)["attention_mask"], torch.ones(3, 3, dtype=torch.long), more["attention_mask"]], 1)
    out = model.generate(ids, attention_mask=mask, past_key_values=first.past_key_values, max_new_tokens=4, do_sample=False)
    for row, prompt in enumerate(PROMPTS):
        assert out[row, -4:].tolist() == greedy(loop, first.sequences[row, 7 - len(prompt) :].tolist() + new[row], 4)[-4:]


@every_type
@torch.no_grad()
def test_calls_of_several_tokens_on_a_filled_cache(name):
    model, ids = make(name), ids_of(3, 17)
    whole = judge(name)(ids).logits
    cache = CyfaCache()
    parts = [model(ids[:, a:b], past_key_values=cache).logits for a, b in ((0, 5), (5, 6), (6, 13), (13, 17))]
    assert cache.get_seq_length() == 17
    assert rel(torch.cat(parts, 1), whole) < ROUNDING


def test_a_prompt_in_chunks():
    model = make("cyclic_flow")
    ids = ids_of(1, 23)
    out = model.generate(ids, max_new_tokens=6, do_sample=False, prefill_chunk_size=5)
    assert out[0].tolist() == greedy(judge("cyclic_flow"), ids[0].tolist(), 6)


def test_without_a_cache():
    model = make("cyclic_flow")
    out = model.generate(**left_padded(PROMPTS), max_new_tokens=6, do_sample=False, use_cache=False)
    for row, prompt in enumerate(PROMPTS):
        assert out[row, -6:].tolist() == greedy(judge("cyclic_flow"), prompt, 6)[-6:]
    assert not ran_steps(model)


def test_embeddings_instead_of_tokens():
    model = make("cyclic_flow")
    embedded = model.get_input_embeddings()(torch.tensor([PROMPTS[0]]))
    out = model.generate(inputs_embeds=embedded, max_new_tokens=6, do_sample=False)
    assert out[0].tolist() == greedy(judge("cyclic_flow"), PROMPTS[0], 6)[-6:]


@every_type
def test_assisted_generation_equals_greedy(name):
    """Rejected drafts are taken back from the state: the model's own draft, drafts of a worse model, and pieces of the prompt."""
    model, other = make(name), make("gla")
    prompt = torch.tensor([[3, 7, 3, 7, 3, 7, 3]])
    wanted = greedy(judge(name), prompt[0].tolist(), 12)
    for options in ({"assistant_model": make(name)}, {"assistant_model": other}, {"prompt_lookup_num_tokens": 3}):
        assert model.generate(prompt, max_new_tokens=12, do_sample=False, **options)[0].tolist() == wanted, options


def test_an_engine_is_prepared_once_and_again_after_the_weights_change():
    model = make("cyclic_flow")
    options = {"max_new_tokens": 6, "do_sample": False}
    prompt = torch.tensor([PROMPTS[0]])
    before = model.generate(prompt, **options)
    engine = model._kept_engine._engine
    model.generate(prompt, **options)
    assert model._kept_engine._engine is engine
    other = judge("cyclic_flow")
    with torch.no_grad():
        for weights in (model.lm_head.weight, other.lm_head.weight):
            weights.copy_(weights.roll(1, 0))
    after = model.generate(prompt, **options)
    assert model._kept_engine._engine is not engine and not torch.equal(after, before)
    assert after[0].tolist() == greedy(other, PROMPTS[0], 6)
    copied = copy.deepcopy(model)
    assert not ran_steps(copied) and torch.equal(copied.generate(prompt, **options), after)


# The cache itself.


@torch.no_grad()
def filled(model, ids, steps=True):
    """A cache after ids, whose states are in an engine (as while generate() decodes) or at hand."""
    cache = CyfaCache()
    model(ids[:, :-1], past_key_values=cache)
    if steps:
        with model._kept_engine.in_use():
            model(ids[:, -1:], past_key_values=cache)
    else:
        model(ids[:, -1:], past_key_values=cache)
    return cache


@every_type
@pytest.mark.parametrize("steps", [True, False], ids=["in an engine", "at hand"])
@torch.no_grad()
def test_cache_selects_repeats_and_copies(name, steps):
    model, loop, ids = make(name), judge(name), ids_of(3, 9)

    def check(cache, rows):
        assert cache.batch_size == len(rows) and cache.get_seq_length() == 9 and len(cache) == 2
        assert all(len(s) == len(rows) for layer in cache.states for s in layer)
        more = ids[:, :1][rows]
        logits = model(more, past_key_values=cache).logits[:, -1]
        for row, got in zip(rows, logits):
            assert rel(got, next_logits(loop, ids[row].tolist() + ids[row, :1].tolist())) < ROUNDING

    cache = filled(model, ids, steps)
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    check(cache, [2, 0, 0])
    cache = filled(model, ids, steps)
    cache.batch_repeat_interleave(2)
    check(cache, [0, 0, 1, 1, 2, 2])
    cache = filled(model, ids, steps)
    cache.batch_select_indices(torch.tensor([1]))
    check(cache, [1])
    cache = filled(model, ids, steps)
    copies = copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))
    model(ids, past_key_values=cache)
    for other in copies:
        check(other, [0, 1, 2])


@every_type
@torch.no_grad()
def test_cache_takes_back_what_came_after_recording_began(name):
    model, loop, ids = make(name), judge(name), ids_of(1, 12)
    for back in (0, 1, 3, 4, 5, 8):
        cache = CyfaCache()
        model(ids[:, :4], past_key_values=cache)
        cache.activate_past_recording()
        assert cache.is_recording_past()
        for a, b in ((4, 7), (7, 8), (8, 12)):
            model(ids[:, a:b], past_key_values=cache)
        cache.crop(-back)
        assert cache.get_seq_length() == 12 - back
        left = ids[0, : 12 - back].tolist()
        assert rel(model(torch.tensor([[6]]), past_key_values=cache).logits[0, -1], next_logits(loop, [*left, 6])) < ROUNDING
    cache.crop(0)
    with pytest.raises(ValueError, match=r"crop\(-1\).*cannot go further back"):
        cache.crop(-1)
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.states is None
    assert rel(model(ids, past_key_values=cache).logits, loop(ids).logits) < ROUNDING


def test_cache_refuses_others():
    from transformers import DynamicCache

    with pytest.raises(ValueError, match="past_key_values is a DynamicCache, wanted a cyfa.hf.CyfaCache or None"):
        make("cyclic_flow")(ids_of(), past_key_values=DynamicCache())
