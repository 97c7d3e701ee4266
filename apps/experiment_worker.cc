#include "apps/experiment_worker.h"

#include <chrono>
#include <fstream>
#include <iostream>

#include "apps/commands.h"
#include "apps/error_text.h"
#include "apps/interrupt.h"
#include "apps/machine.h"
#include "apps/output.h"
#include "apps/parse.h"
#include "apps/program.h"
#include "apps/threads.h"
#include "cyfa/experiment/plan.h"
#include "cyfa/io/json.h"

namespace cyfa::app {
namespace {

namespace fs = std::filesystem;
using experiment::Place;

constexpr double kProgressSeconds = 0.25;

void say(const Json& line) { std::cout << dump(line) << '\n' << std::flush; }

// Times a training step or an operator with `cyfa bench`, in a process of its own.
Json timed(const Json& key, const Place& place) {
  std::vector<std::string> words = start_words();
  words.emplace_back("bench");
  const bool decodes = key["kind"] == experiment::kDecodingSpeed;
  if (key.contains("config")) {
    fs::create_directories(place.folder);
    const fs::path config = place.folder / "config.json";
    std::ofstream(config) << key["config"].dump(2) << '\n';
    words.insert(words.end(), {decodes ? "decode" : "train", config.string()});
  } else {
    words.insert(words.end(), {"op", "--pass", "both"});
    for (const auto& [name, value] : key["op"].items()) {
      words.insert(words.end(), {"--" + name, value.is_string() ? value.get<std::string>() : value.dump()});
    }
  }
  for (const char* name : {"B", "T", "dtype", "device", "repeats"}) {
    const std::string option = decodes && name == std::string("T") ? "contexts" : name;
    words.insert(words.end(), {"--" + option, key[name].is_string() ? key[name].get<std::string>() : key[name].dump()});
  }
  words.insert(words.end(), {"--json", "-"});
  Json result = Json::object();
  const auto start = std::chrono::steady_clock::now();
  try {
    result["rows"] = io::parse_json(output_of(words), "output of cyfa bench");
  } catch (const std::runtime_error& e) {
    result["failed"] = e.what();
  }
  result["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fs::remove_all(place.folder);
  return result;
}

std::optional<Json> done(const Json& key, const Place& place, const GracefulStop& stop) {
  for (const char* kind : {experiment::kTrainingSpeed, experiment::kOperatorSpeed, experiment::kDecodingSpeed}) {
    if (key["kind"] == kind) return timed(key, place);
  }
  using Clock = std::chrono::steady_clock;
  Clock::time_point said = Clock::now();
  const auto progress = [&](int64_t step, int64_t steps, double speed, double loss) {
    const Clock::time_point now = Clock::now();
    if (std::chrono::duration<double>(now - said).count() < kProgressSeconds) return;
    said = now;
    say({{"step", step}, {"steps", steps}, {"tokens_per_s", speed}, {"loss", loss}});
  };
  return experiment::execute(key, place, progress, [&] { return stop.requested(); });
}

}  // namespace

int work() {
  const GracefulStop stop;
  for (std::string line; !stop.requested() && std::getline(std::cin, line);) {
    try {
      const Json job = io::parse_json(line, "a job");
      use_threads(job.at("threads").get<int>(), "--threads");
      const Json& p = job.at("place");
      const Place place{p.at("folder").get<std::string>(), p.at("data").get<std::string>(),   p.at("validation").get<std::string>(),
                        p.at("model").get<std::string>(),  p.at("device").get<std::string>(), p.at("save_minutes").get<double>(),
                        p.at("keep").get<bool>()};
      const at::Device device = parse_device(place.device);
      std::optional<Json> result = done(job.at("key"), place, stop);
      if (!result) {
        say({{"stopped", true}});
        continue;
      }
      result->update({{"device", place.device}, {"machine", machine_name(device)}, {"commit", commit()}, {"date", utc_date()}});
      say({{"result", *result}});
    } catch (const std::exception& e) {
      say({{"error", error_text(e)}});
    }
  }
  return kDone;
}

void Worker::begin(const experiment::Run& of, const Place& place, int threads) {
  if (!process) {
    std::vector<std::string> words = start_words();
    words.insert(words.end(), {"experiment", kWorkerOption});
    process = std::make_unique<Child>(words);
  }
  run = of;
  step = steps = 0;
  tokens_per_s = 0;
  process->send(dump({{"key", of.key},
                      {"threads", threads},
                      {"place",
                       {{"folder", place.folder.string()},
                        {"data", place.data.string()},
                        {"validation", place.validation.string()},
                        {"model", place.model.string()},
                        {"device", place.device},
                        {"save_minutes", place.save_minutes},
                        {"keep", place.keep}}}}));
}

}  // namespace cyfa::app
