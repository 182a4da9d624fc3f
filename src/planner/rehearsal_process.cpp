#include "vlmtrain/planner/rehearsal_process.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "planner/child_process.h"
#include "planner/parent_watch.h"
#include "planner/protocol.h"
#include "planner/twin_rehearsal.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::planner {

namespace {

/// Far more than a rehearsal takes: the largest seen took 2 GB.
constexpr int64_t kMostHostBytes = int64_t{8} << 30;

/// For tests: how much later than it could a twin answers, as one does whose host is busy.
std::chrono::duration<double> twin_delay() {
  const char* const seconds = std::getenv("VLMTRAIN_TWIN_DELAY_SECONDS");
  return std::chrono::duration<double>(seconds == nullptr ? 0 : std::atof(seconds));
}

/// A rehearsal's refusal, for the process that asked.
void answer_with(const UserError& error) {
  write_line(stdout, {{"error", {{"code", static_cast<int>(error.code())}, {"message", error.what()}}}});
}

/// Nothing, once the process that asked knows why, where there is no device.
std::optional<at::Device> open_or_answer() {
  try {
    return memory::open_device("cuda");
  } catch (const UserError& error) {
    answer_with(error);
    return std::nullopt;
  }
}

}  // namespace

RehearsalProcess::RehearsalProcess(const Job& job, const VirtualCard& card) {
  child_ = std::make_unique<ChildProcess>(card);
  set_job(job);
}

RehearsalProcess::~RehearsalProcess() = default;

void RehearsalProcess::set_job(const Job& job) {
  child_->send({{"job", job}});
}

Outcome RehearsalProcess::rehearse(const RehearsalRequest& request) {
  child_->send({{"request", request}});
  return child_->receive().get<Outcome>();
}

void serve_rehearsals() {
  const char* const parent = std::getenv(kParentVariable);
  watch_parent({.parent = parent != nullptr ? std::atoi(parent) : 0, .most_host_bytes = kMostHostBytes});
  const auto opened = open_or_answer();
  if (!opened) return;
  const at::Device device = *opened;
  Job job;
  std::optional<TwinRehearsal> twin;
  const auto delay = twin_delay();
  while (const auto line = read_line(stdin)) {
    const auto message = nlohmann::json::parse(*line);
    if (message.contains("job")) {
      job = message["job"].get<Job>();
      continue;
    }
    try {
      if (message.contains("twin")) {
        twin.emplace(job, message["twin"].get<Choices>(), device);
        continue;
      }
      if (message.contains("twin_step")) {
        if (!twin) break;  // why there is none was the answer to the line before
        const auto found = twin->rehearse(message["twin_step"].get<TwinStep>());
        std::this_thread::sleep_for(delay);
        write_line(stdout, found);
        continue;
      }
      write_line(stdout, rehearse(job, message.at("request").get<RehearsalRequest>(), device));
    } catch (const UserError& error) {
      answer_with(error);
    }
  }
}

}  // namespace vlmtrain::planner
