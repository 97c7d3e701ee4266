// From text to tokens and back: formats, BOS and EOS tokens, threads, interrupted runs, damaged inputs.
#include <gtest/gtest.h>
#include <zstd.h>

#include <random>

#include "cyfa/data/json_text.h"
#include "cyfa/data/text_source.h"
#include "cyfa/data/tokenizer.h"
#include "cyfa/io/file_error.h"
#include "tests/data/data_folder.h"

namespace cyfa::test {
namespace {

std::string compressed(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string line(const std::string& text) { return Json{{"id", 1}, {"text", text}}.dump() + "\n"; }

// The documents of a folder of byte tokens, with BOS and EOS shown as <b> and <e>.
std::vector<std::string> documents(const std::filesystem::path& folder) {
  const TokenData data = TokenData::open(folder);
  data.verify();
  const std::vector<int64_t> all = tokens_of(data);
  std::vector<int64_t> starts = data.document_starts(0, data.tokens());
  EXPECT_EQ(static_cast<int64_t>(starts.size()), data.documents());
  starts.push_back(data.tokens());
  std::vector<std::string> texts;
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    std::string text;
    for (int64_t at = starts[i]; at < starts[i + 1]; ++at) {
      const int64_t id = all[static_cast<size_t>(at)];
      text += id == 256 ? "<b>" : id == 257 ? "<e>" : std::string(1, static_cast<char>(id));
    }
    texts.push_back(text);
  }
  return texts;
}

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(Prepare, AllFormatsInTheOrderOfTheirNames) {
  const Folder folder;
  write_file(folder / "in/b.txt", "second");
  write_file(folder / "in/a.jsonl", line("first") + "\n  \r\n" + line("f2\n\"x\" ü 🙂"));
  write_file(folder / "in/c/x.jsonl.zst", compressed(line("third")) + compressed(line("fourth")));  // two zstd frames
  write_file(folder / "in/d.txt.zst", compressed("fifth"));
  write_file(folder / "in/.hidden.txt", "no");
  write_file(folder / "in/README.md", "no");
  prepare(folder / "out", folder / "in");
  const std::vector<std::string> wanted = {"<b>first", "<b>f2\n\"x\" ü 🙂", "<b>second", "<b>third", "<b>fourth", "<b>fifth"};
  EXPECT_EQ(documents(folder / "out"), wanted);
  const TokenData data = TokenData::open(folder / "out");
  EXPECT_EQ(data.tokenizer(), "bytes");
  EXPECT_EQ(data.vocab_size(), 258);
  EXPECT_EQ(data.manifest().input_files, 4);
  EXPECT_FALSE(std::filesystem::exists(folder / "out/progress.json"));
}

TEST(Prepare, Marks) {
  const Folder folder;
  write_file(folder / "in.jsonl", line("ab") + line("c"));
  const auto with = [&](const char* name, bool begin, bool end) {
    prepare(folder / name, folder / "in.jsonl", [&](PrepareOptions& o) {
      o.begin = begin;
      o.end = end;
    });
    return documents(folder / name);
  };
  EXPECT_EQ(with("both", true, true), (std::vector<std::string>{"<b>ab<e>", "<b>c<e>"}));
  EXPECT_EQ(with("end", false, true), (std::vector<std::string>{"ab<e>", "c<e>"}));
  EXPECT_EQ(with("none", false, false), (std::vector<std::string>{"ab", "c"}));
  prepare(folder / "own", folder / "in.jsonl", [](PrepareOptions& o) { o.bos = 7; });
  EXPECT_EQ(documents(folder / "own"), (std::vector<std::string>{"\aab", "\ac"}));
  EXPECT_HAS(error_of([&] { prepare(folder / "bad", folder / "in.jsonl", [](PrepareOptions& o) { o.bos = 258; }); }), "258 tokens");
}

// Lines of many lengths, some longer than others by far; a few invalid ones if `bad`.
std::string many_lines(int count, bool bad) {
  std::mt19937 random(3);
  std::string all;
  for (int i = 0; i < count; ++i) {
    std::string text(random() % 300, ' ');
    if (i % 50 == 7) text.resize(5000);
    for (char& c : text) c = "etaoin shrdlu\n"[random() % 14];
    all += line(text);
    if (bad && i % 31 == 0) all += "{\"text\": 12}\n";
  }
  return all;
}

TEST(Prepare, ThreadsAndCompressionDoNotMatter) {
  const Folder folder;
  const std::string lines = many_lines(3000, true);
  for (const char* name : {"one", "two"}) write_file(folder / "plain" / (std::string(name) + ".jsonl"), lines);
  for (const char* name : {"one", "two"}) write_file(folder / "packed" / (std::string(name) + ".jsonl.zst"), compressed(lines));
  const auto run = [&](const std::string& name, const char* input, int threads) {
    const PrepareResult result = prepare(folder / name, folder / input, [&](PrepareOptions& o) {
      o.threads = threads;
      o.shard_tokens = 100000;
    });
    EXPECT_EQ(result.manifest.losses.damaged, 2 * 97);
    return contents(folder / name);
  };
  const auto one = run("1", "plain", 1);
  EXPECT_GT(one.size(), 10U);
  EXPECT_EQ(run("2", "plain", 2), one);
  EXPECT_EQ(run("5", "plain", 5), one);
  auto packed = run("z", "packed", 2);
  packed.erase("manifest.json");
  for (const auto& [name, bytes] : packed) EXPECT_EQ(one.at(name), bytes) << name;
}

// A run that is interrupted by exceptions again and again gives the same result as an uninterrupted one.
TEST(Prepare, InterruptedRuns) {
  const Folder folder;
  write_file(folder / "in/a.jsonl", many_lines(2000, true));
  write_file(folder / "in/b.txt", many_lines(9000, false));  // several pieces
  write_file(folder / "in/c.jsonl.zst", compressed(many_lines(1500, true)));
  const auto settings = [&](const std::filesystem::path& out) {
    PrepareOptions options;
    options.folder = out;
    options.inputs = {(folder / "in").string()};
    options.shard_tokens = 200000;
    options.threads = 2;
    options.end = true;
    return options;
  };
  Prepare(settings(folder / "whole")).run();
  struct Stop {};
  int64_t resumed = 0;
  for (int round = 0;; ++round) {
    Prepare again(settings(folder / "parts"));
    int64_t left = round % 3 == 0 ? 40 : 65;  // damaged inputs until it stops
    again.on_damage = [&](const std::string&) {
      if (--left == 0) throw Stop();
    };
    try {
      const PrepareResult result = again.run();
      resumed = result.resumed_shards;
      break;
    } catch (const Stop&) {
      EXPECT_TRUE(std::filesystem::exists(folder / "parts/progress.json"));
      EXPECT_THROW(TokenData::open(folder / "parts"), io::FileError);
    }
    ASSERT_LT(round, 50);
  }
  EXPECT_GT(resumed, 0);
  EXPECT_EQ(contents(folder / "parts"), contents(folder / "whole"));
}

TEST(Prepare, WhatChangedMeanwhileIsRefused) {
  const Folder folder;
  write_file(folder / "in.jsonl", many_lines(2000, false) + "{}\n");
  const auto run = [&](const std::function<void(PrepareOptions&)>& change) {
    prepare(folder / "out", folder / "in.jsonl", [&](PrepareOptions& o) {
      o.shard_tokens = 50000;
      o.stop_at_damage = true;
      if (change) change(o);
    });
  };
  EXPECT_HAS(error_of([&] { run(nullptr); }), "in.jsonl: line 2001, byte ");
  EXPECT_HAS(error_of([&] { run([](PrepareOptions& o) { o.shard_tokens = 50001; }); }), "shard_tokens was 50000 and is now 50001");
  EXPECT_HAS(error_of([&] { run([](PrepareOptions& o) { o.end = true; }); }), "end was null and is now 257");
  EXPECT_HAS(error_of([&] { run([](PrepareOptions& o) { o.text_field = "id"; }); }), "text_field");
  EXPECT_HAS(error_of([&] { run([&](PrepareOptions& o) { o.inputs.push_back(o.inputs[0]); }); }), "inputs have changed");
  const std::filesystem::path shard = folder / "out/shard-00001.tokens";
  const std::string bytes = read_file(shard);
  write_file(shard, bytes.substr(1));
  EXPECT_HAS(error_of([&] { run(nullptr); }), "shard-00001.tokens");
  write_file(shard, bytes);
  const std::string progress = read_file(folder / "out/progress.json");
  write_file(folder / "out/progress.json", progress.substr(0, progress.size() / 2));
  EXPECT_HAS(error_of([&] { run(nullptr); }), "progress.json");
  write_file(folder / "out/progress.json", progress);
  run([](PrepareOptions& o) { o.stop_at_damage = false; });
  EXPECT_EQ(TokenData::open(folder / "out").manifest().losses.damaged, 1);
  EXPECT_HAS(error_of([&] { run(nullptr); }), "holds finished tokens already");
}

TEST(Prepare, DamageIsNamedAndLeftOut) {
  const Folder folder;
  const std::string first = line("good");
  write_file(folder / "in.jsonl", first + "not json\n" + R"({"id": 3})" + "\n" + R"({"text": 5})" + "\n" + R"({"text": "x"} y)" + "\n" +
                                      line("") +
                                      R"({"text": "a)"
                                      "\xFF"
                                      R"(b"})" +
                                      "\n" + R"({"text": "\ud800"})" + "\n" + R"({"text": "cut)");
  std::vector<std::string> places;
  PrepareOptions options;
  options.folder = folder / "out";
  options.inputs = {(folder / "in.jsonl").string()};
  Prepare run(options);
  run.on_damage = [&](const std::string& place) { places.push_back(place); };
  const DataLosses losses = run.run().manifest.losses;
  EXPECT_EQ(losses, (DataLosses{5, 1, 2}));
  EXPECT_EQ(documents(folder / "out"), (std::vector<std::string>{"<b>good", "<b>a\uFFFDb", "<b>\uFFFD"}));
  ASSERT_EQ(places.size(), 5U);
  EXPECT_HAS(places[0], "in.jsonl: line 2, byte " + std::to_string(first.size()) + ": is not a JSON object");
  EXPECT_HAS(places[1], "line 3, byte " + std::to_string(first.size() + 9) + ": has no key \"text\"");
  EXPECT_HAS(places[2], "line 4");
  EXPECT_HAS(places[2], "no string");
  EXPECT_HAS(places[3], "line 5");
  EXPECT_HAS(places[4], "line 9");
  options.folder = folder / "strict";
  options.stop_at_damage = true;
  EXPECT_HAS(error_of([&] { Prepare(options).run(); }), "in.jsonl: line 2, byte ");
}

TEST(Prepare, DamagedZstd) {
  const Folder folder;
  std::string lines;
  for (int i = 0; i < 20000; ++i) lines += line("number " + std::to_string(i * 7919 % 20011));
  const std::string good = compressed(lines);
  const auto run = [&](const std::string& bytes, const char* name) {
    write_file(folder / name / "a.jsonl.zst", bytes);
    write_file(folder / name / "b.txt", "after");
    const PrepareResult result = prepare(folder / (std::string(name) + "-out"), folder / name);
    const std::vector<std::string> texts = documents(folder / (std::string(name) + "-out"));
    EXPECT_EQ(texts.back(), "<b>after");
    for (size_t i = 0; i + 1 < texts.size(); ++i) EXPECT_EQ(texts[i], "<b>number " + std::to_string(i * 7919 % 20011));
    return std::pair(result.manifest.losses.damaged, texts.size());
  };
  EXPECT_EQ(run(good, "good"), (std::pair<int64_t, size_t>(0, 20001)));
  const auto [damaged, texts] = run(good.substr(0, good.size() - 10), "cut");
  EXPECT_EQ(damaged, 1);
  EXPECT_GT(texts, 1U);
  EXPECT_EQ(run("this is no zstd", "other").first, 1);
  EXPECT_EQ(run("", "empty").first, 0);
  EXPECT_HAS(error_of([&] { prepare(folder / "stop", folder / "cut", [](PrepareOptions& o) { o.stop_at_damage = true; }); }),
             "a.jsonl.zst");
}

TEST(Prepare, EmptyAndAbsent) {
  const Folder folder;
  write_file(folder / "empty.txt", "");
  write_file(folder / "empty.jsonl", "\n\n");
  write_file(folder / "in.doc", "text");
  std::filesystem::create_directories(folder / "folder");
  EXPECT_HAS(error_of([&] { prepare(folder / "out", folder / "empty.txt"); }), "hold no text");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  EXPECT_HAS(error_of([&] { prepare(folder / "out", folder / "empty.jsonl"); }), "hold no text");
  EXPECT_HAS(error_of([&] { prepare(folder / "out", folder / "absent.txt"); }), "absent.txt");
  EXPECT_HAS(error_of([&] { prepare(folder / "out", folder / "folder"); }), ".jsonl.zst");
  EXPECT_HAS(error_of([&] { prepare(folder / "out", folder / "in.doc"); }), "in.doc");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  write_file(folder / "in.txt", "text");
  EXPECT_HAS(error_of([&] { prepare(folder / "folder/..", folder / "in.txt"); }), "holds other files");
  EXPECT_HAS(error_of([&] { prepare(folder / "in.doc", folder / "in.txt"); }), "in.doc");
  // An empty document among others is skipped and counted.
  write_file(folder / "some/a.txt", "");
  write_file(folder / "some/b.txt", "b");
  EXPECT_EQ(prepare(folder / "out", folder / "some").manifest.losses, (DataLosses{0, 1, 0}));
  EXPECT_EQ(documents(folder / "out"), (std::vector<std::string>{"<b>b"}));
}

TEST(Prepare, LongTextsAndLines) {
  const Folder folder;
  std::string text;
  while (text.size() < 2 * TextReader::kPiece + 12345) text += "word" + std::to_string(text.size()) + (text.size() % 7 == 0 ? "\n" : " ");
  write_file(folder / "in/a.txt", text);
  write_file(folder / "in/b.txt", std::string(TextReader::kPiece, 'x'));
  write_file(folder / "in/c.txt", std::string(TextReader::kPiece + 1, 'y'));
  write_file(folder / "in/d.jsonl", line(std::string(3 << 20, 'z')) + line("end"));
  prepare(folder / "out", folder / "in", [](PrepareOptions& o) { o.shard_tokens = 500000; });
  EXPECT_EQ(documents(folder / "out"),
            (std::vector<std::string>{"<b>" + text, "<b>" + std::string(TextReader::kPiece, 'x'),
                                      "<b>" + std::string(TextReader::kPiece + 1, 'y'), "<b>" + std::string(3 << 20, 'z'), "<b>end"}));
  write_file(folder / "e.jsonl", line("before") + std::string(TextReader::kMostLine + (1 << 20), 'q') + "\n" + line("after"));
  EXPECT_EQ(prepare(folder / "long", folder / "e.jsonl").manifest.losses.damaged, 1);
  EXPECT_EQ(documents(folder / "long"), (std::vector<std::string>{"<b>before", "<b>after"}));
}

class DamagedData : public testing::Test {
 protected:
  void SetUp() override {
    write_file(folder_ / "in.jsonl", many_lines(300, false));
    prepare(folder_ / "data", folder_ / "in.jsonl", [](PrepareOptions& o) { o.shard_tokens = 20000; });
    TokenData::open(folder_ / "data").verify();
  }
  std::string open_error() const {
    return error_of([&] { TokenData::open(folder_ / "data"); });
  }
  void change(const std::string& name, const std::function<void(std::string&)>& f) const {
    std::string bytes = read_file(folder_ / "data" / name);
    f(bytes);
    write_file(folder_ / "data" / name, bytes);
  }
  Folder folder_;
};

TEST_F(DamagedData, FilesOfTheWrongSize) {
  for (const char* name : {"shard-00001.tokens", "shard-00001.documents"}) {
    const std::string good = read_file(folder_ / "data" / name);
    for (const std::string& bad : {good.substr(1), good.substr(0, good.size() - 8), good + "12345678", std::string()}) {
      write_file(folder_ / "data" / name, bad);
      EXPECT_HAS(open_error(), name);
      EXPECT_HAS(open_error(), "holds " + std::to_string(bad.size()) + " bytes");
    }
    std::filesystem::remove(folder_ / "data" / name);
    EXPECT_HAS(open_error(), name);
    write_file(folder_ / "data" / name, good);
  }
  EXPECT_EQ(open_error(), "");
}

TEST_F(DamagedData, ContentsOfTheRightSize) {
  change("shard-00001.tokens", [](std::string& bytes) { bytes[100] = static_cast<char>(bytes[100] ^ 1); });
  const TokenData data = TokenData::open(folder_ / "data");
  EXPECT_HAS(error_of([&] { data.verify(); }), "shard-00001.tokens: has the checksum");
  change("shard-00001.tokens", [](std::string& bytes) { bytes[101] = 2; });  // a token of 512 or more
  EXPECT_HAS(error_of([&] { tokens_of(data); }), "shard-00001.tokens: token 50 is ");
  change("shard-00000.documents", [](std::string& bytes) { bytes[17] = '\x7F'; });
  EXPECT_HAS(error_of([&] { data.document_starts(0, data.tokens()); }), "shard-00000.documents: document ");
  EXPECT_HAS(error_of([&] { data.verify(); }), "shard-00000.documents: has the checksum");
}

TEST_F(DamagedData, Manifests) {
  const std::string good = read_file(folder_ / "data/manifest.json");
  const auto with = [&](const std::function<void(nlohmann::ordered_json&)>& f) {
    auto json = nlohmann::ordered_json::parse(good);
    f(json);
    write_file(folder_ / "data/manifest.json", json.dump());
    const std::string error = open_error();
    EXPECT_HAS(error, "manifest.json");
    return error;
  };
  EXPECT_HAS(with([](auto& j) { j["version"] = 2; }), "version 2");
  EXPECT_HAS(with([](auto& j) { j["format"] = "other"; }), "format");
  EXPECT_HAS(with([](auto& j) { j["tokens"] = 5; }), "tokens is 5");
  EXPECT_HAS(with([](auto& j) { j["documents"] = j["documents"].template get<int64_t>() + 1; }), "documents");
  EXPECT_HAS(with([](auto& j) { j["shards"][1]["tokens"] = -1; }), "shards[1].tokens");
  EXPECT_HAS(with([](auto& j) { j["shards"][1]["tokens"] = 1e30; }), "shards[1].tokens");
  EXPECT_HAS(with([](auto& j) { j["shards"][1]["tokens"] = INT64_MAX; }), "shards[1].tokens");
  EXPECT_HAS(with([](auto& j) { j["shards"][1]["file"] = "../../etc/passwd"; }), "shards[1].file");
  EXPECT_HAS(with([](auto& j) { j["shards"] = 3; }), "shards");
  EXPECT_HAS(with([](auto& j) { j.erase("vocab_size"); }), "vocab_size");
  EXPECT_HAS(with([](auto& j) { j["vocab_size"] = 70000; }), "token_type");
  EXPECT_HAS(with([](auto& j) { j["tokenizer"]["name"] = "/other"; }), "tokenizer.name");
  EXPECT_HAS(with([](auto& j) { j["tokenizer"]["hash"] = "12"; }), "tokenizer.hash");
  EXPECT_HAS(with([](auto& j) { j["marks"]["begin"] = 258; }), "marks.begin");
  // Truncated or changed anywhere, a manifest gives an error or the same data, never a crash.
  std::mt19937 random(8);
  for (int i = 0; i < 400; ++i) {
    std::string bad = good.substr(0, i % 2 == 0 ? random() % good.size() : good.size());
    if (i % 2 == 1) bad[random() % bad.size()] = static_cast<char>(random());
    write_file(folder_ / "data/manifest.json", bad);
    error_of([&] { TokenData::open(folder_ / "data").verify(); });
  }
}

TEST_F(DamagedData, Ranges) {
  const TokenData data = TokenData::open(folder_ / "data");
  const int64_t all = data.tokens();
  std::vector<int64_t> some(10);
  EXPECT_THROW(data.read(all - 9, some), std::out_of_range);
  EXPECT_THROW(data.read(-1, some), std::out_of_range);
  EXPECT_THROW(data.read(INT64_MAX - 3, some), std::out_of_range);
  EXPECT_THROW(data.document_starts(0, all + 1), std::out_of_range);
  EXPECT_THROW(data.document_starts(5, 4), std::out_of_range);
  data.read(all, std::span(some).first(0));
  EXPECT_TRUE(data.document_starts(all, all).empty());
  // Random ranges, across shard boundaries.
  const std::vector<int64_t> tokens = tokens_of(data), starts = data.document_starts(0, all);
  std::mt19937_64 random(9);
  for (int i = 0; i < 300; ++i) {
    const auto begin = static_cast<int64_t>(random() % static_cast<uint64_t>(all)),
               end = begin + static_cast<int64_t>(random() % static_cast<uint64_t>(all - begin + 1));
    std::vector<int64_t> part(static_cast<size_t>(end - begin));
    data.read(begin, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), tokens.begin() + begin));
    std::vector<int64_t> wanted;
    std::copy_if(starts.begin(), starts.end(), std::back_inserter(wanted), [&](int64_t s) { return s >= begin && s < end; });
    EXPECT_EQ(data.document_starts(begin, end), wanted);
  }
}

TEST(Checksums, InPiecesAsInOne) {
  std::string text(3 << 20, '\0');
  std::mt19937 random(1);
  for (char& c : text) c = static_cast<char>(random());
  const auto bytes = std::as_bytes(std::span(text));
  Checksum sum;
  for (size_t at = 0; at < bytes.size();) {
    const size_t count = std::min<size_t>(random() % 700000, bytes.size() - at);
    sum.add(bytes.subspan(at, count));
    at += count;
  }
  EXPECT_EQ(sum.value(), checksum(bytes));
  EXPECT_NE(checksum(bytes.first(1 << 20)), checksum(bytes.first((1 << 20) - 1)));
  EXPECT_NE(checksum(bytes), checksum({}));
}

// Compared with a general JSON parser.
TEST(JsonTextTest, AgreesWithTheParser) {
  std::string buffer;
  const auto compare = [&](const std::string& text) {
    const auto json = nlohmann::json::parse(text, nullptr, false);
    const JsonText found = json_text(text, "text", buffer);
    const bool wanted = json.is_object() && json.contains("text") && json["text"].is_string();
    EXPECT_EQ(found.problem.empty(), wanted) << text << "\n" << found.problem;
    if (!wanted || !found.problem.empty()) return;
    EXPECT_EQ(found.text, json["text"].get<std::string>()) << text;
  };
  const std::vector<std::string> seeds = {R"({"text": "a\nb\u00e9\ud83d\ude42\"\\\/\b\f\r\t"})",
                                          R"({"a": [1, -2.5e+3, true, null, {"text": "inner"}], "text": "outer", "b": {}})",
                                          R"( {"te\u0078t":"escaped key"} )",
                                          R"({"text":"one","text":"two"})",
                                          R"({"text":"x","n":0.10,"m":-0,"e":[[]],"f":1E5})",
                                          R"({})",
                                          R"([])",
                                          R"("text")",
                                          R"({"text":null})",
                                          ""};
  std::mt19937 random(5);
  for (const std::string& seed : seeds) {
    compare(seed);
    for (int i = 0; i < 3000 && !seed.empty(); ++i) {
      std::string text = seed;
      for (unsigned changes = random() % 3 + 1; changes > 0; --changes) {
        const char c = "{}[]\",:\\u0019aet-+. \x01nrxl"[random() % 25];
        const size_t at = random() % text.size();
        if (random() % 3 == 0) {
          text.insert(at, 1, c);
        } else if (random() % 2 == 0 && text.size() > 1) {
          text.erase(at, 1);
        } else {
          text[at] = c;
        }
      }
      if (text.find("\\ud") != std::string::npos || text.find("\\uD") != std::string::npos)
        continue;  // json_text accepts halves of
                   // surrogate pairs
      compare(text);
    }
  }
  EXPECT_EQ(json_text("\xEF\xBB\xBF{\"text\": \"x\"}", "text", buffer).text, "x");
  EXPECT_FALSE(json_text(std::string(100000, '[') + "1", "text", buffer).problem.empty());
  EXPECT_FALSE(json_text(R"({"text": "x", "d": )" + std::string(100000, '[') + "}", "text", buffer).problem.empty());
}

}  // namespace
}  // namespace cyfa::test
