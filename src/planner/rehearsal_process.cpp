#include "vlmtrain/planner/rehearsal_process.h"

#include <stdio_ext.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "planner/child_process.h"
#include "planner/parent_watch.h"
#include "planner/protocol.h"
#include "planner/spawned_child.h"
#include "planner/twin_rehearsal.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/kernels.h"
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

/// From here on there is a process for each connection, this one and copies of it, whose stdin and stdout it is.
/// Autograd's threads do not survive a copy: before any rehearsal. Returns the process that this one dies with.
pid_t part_into_workers(const SpawnedAs& spawned) {
  const pid_t first = getpid();
  for (const int connection : spawned.connections) {
    const pid_t copy = fork();
    if (copy == 0) {
      dup2(connection, STDIN_FILENO);
      dup2(connection, STDOUT_FILENO);
      __fpurge(stdin);  // what the first worker has read ahead is its own
    }
    if (copy <= 0) {
      for (const int each : spawned.connections) close(each);
      return copy == 0 ? first : spawned.parent;  // where there can be no copy, its connection ends
    }
  }
  for (const int connection : spawned.connections) close(connection);
  return spawned.parent;
}

/// Opens the card that the first line names.
at::Device open_card(const std::string& line) {
  for (const auto& [name, value] : nlohmann::json::parse(line).at("card").get<Variables>()) {
    setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  return memory::open_device("cuda");
}

void answer_requests(at::Device device) {
  Job job;
  std::optional<TwinRehearsal> twin;
  const auto delay = twin_delay();
  while (const auto line = read_line(stdin)) {
    const auto message = nlohmann::json::parse(*line);
    if (message.contains("job")) {
      job = message["job"].get<Job>();
      kernels::open_kernels(device, job.left_out_kernels);
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

constexpr size_t kFirst = 0;
constexpr size_t kSecond = 1;

}  // namespace

struct RehearsalProcess::Begun {
  nlohmann::json request;     // null: nothing, or nothing that will be asked for
  bool is_under_way = false;  // an answer is still to be read
  bool has_worker = true;     // false: there is none, or it has died, and the first does all
};

RehearsalProcess::RehearsalProcess(const Job& job, const VirtualCard& card)
    : child_(std::make_unique<ChildProcess>(card, workers_that_pay())), begun_(std::make_unique<Begun>()) {
  begun_->has_worker = child_->workers() > 1;
  set_job(job);
}

RehearsalProcess::~RehearsalProcess() = default;

void RehearsalProcess::set_job(const Job& job) {
  for (size_t worker = 0; worker < child_->workers(); ++worker) child_->send({{"job", job}}, worker);
  begun_->request = nullptr;
}

Outcome RehearsalProcess::rehearse(const RehearsalRequest& request) {
  const nlohmann::json asked = request;
  if (begun_->is_under_way && begun_->request == asked) {
    begun_->is_under_way = false;
    if (const auto answer = child_->receive_from(kSecond)) return answer->get<Outcome>();
    begun_->has_worker = false;
  }
  child_->send({{"request", asked}}, kFirst);
  return child_->receive().get<Outcome>();
}

void RehearsalProcess::begin(const RehearsalRequest& request) {
  if (begun_->is_under_way) {
    if (!child_->has_answered(kSecond)) return;
    begun_->has_worker = child_->drop_answer(kSecond);
  }
  begun_->is_under_way = begun_->has_worker;
  if (!begun_->has_worker) return;
  begun_->request = request;
  child_->send({{"request", begun_->request}}, kSecond);
}

void serve_rehearsals() {
  const SpawnedAs spawned = spawned_as();
  die_with(spawned.parent);
  const auto line = read_line(stdin);
  if (!line) return;
  std::optional<at::Device> device;
  std::optional<UserError> failure;
  try {
    device = open_card(*line);
  } catch (const UserError& error) {
    failure = error;
  }
  watch_parent({.parent = part_into_workers(spawned), .most_host_bytes = kMostHostBytes});
  if (failure) {
    answer_with(*failure);
  } else {
    answer_requests(*device);
  }
}

}  // namespace vlmtrain::planner
