#include "vlmtrain/planner/dry_run_process.h"

#include <stdio_ext.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "planner/dry_run/child_process.h"
#include "planner/dry_run/dry_run_session.h"
#include "planner/dry_run/protocol.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/planner/spawned_child.h"

namespace vlmtrain::planner {

namespace {

/// Limit of the resident memory of a dry-run process. The largest measured process took 2 GB.
constexpr int64_t kMaxHostBytes = int64_t{8} << 30;

/// Returns the delay of look-ahead answers, which is 0 except in tests that simulate a busy host.
std::chrono::duration<double> get_look_ahead_delay() {
  const char* const seconds = std::getenv("VLMTRAIN_LOOK_AHEAD_DELAY_SECONDS");
  return std::chrono::duration<double>(seconds == nullptr ? 0 : std::atof(seconds));
}

/// Sends an error to the parent as the answer to its request.
void write_error(const UserError& error) {
  write_line(stdout, {{"error", {{"code", static_cast<int>(error.code())}, {"message", error.what()}}}});
}

/// Forks one worker process for each connection in `spawn_info`, which becomes its stdin and
/// stdout. Returns, in each process, the process that it has to die with: the first worker for
/// forked workers, the planner's process for the first worker. REQUIRES: no dry run yet, since
/// autograd's threads do not survive a fork.
pid_t fork_workers(const SpawnInfo& spawn_info) {
  const pid_t main_worker = getpid();
  for (const int connection : spawn_info.connections) {
    const pid_t child = fork();
    if (child == 0) {
      dup2(connection, STDIN_FILENO);
      dup2(connection, STDOUT_FILENO);
      __fpurge(stdin);  // discard what the first worker has read ahead
    }
    if (child <= 0) {
      for (const int worker_connection : spawn_info.connections) close(worker_connection);
      // If fork() failed, closing the connection tells the parent that this worker does not exist.
      return child == 0 ? main_worker : spawn_info.parent;
    }
  }
  for (const int connection : spawn_info.connections) close(connection);
  return spawn_info.parent;
}

/// Opens the virtual GPU that the parent's first line describes (spawn_child()).
at::Device open_virtual_gpu(const std::string& line) {
  for (const auto& [name, value] : nlohmann::json::parse(line).at("gpu").get<EnvironmentVariables>()) {
    setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  return memory::open_device("cuda");
}

/// Answers requests on stdin (protocol.h) until stdin ends.
void serve_requests(at::Device device) {
  Job job;
  std::optional<LookAheadDryRun> look_ahead;
  const auto delay = get_look_ahead_delay();
  while (const auto line = read_line(stdin)) {
    const auto message = nlohmann::json::parse(*line);
    if (message.contains("job")) {
      job = message["job"].get<Job>();
      kernels::open_kernels(device, job.disabled_kernels);
      continue;
    }
    try {
      if (message.contains("look_ahead")) {
        look_ahead.emplace(job, message["look_ahead"].get<StepConfig>(), device);
        continue;
      }
      if (message.contains("look_ahead_step")) {
        if (!look_ahead) break;  // creating it failed; the error was the previous answer
        const auto forecast = look_ahead->dry_run(message["look_ahead_step"].get<LookAheadStep>());
        std::this_thread::sleep_for(delay);
        write_line(stdout, forecast);
        continue;
      }
      write_line(stdout, dry_run(job, message.at("request").get<DryRunRequest>(), device));
    } catch (const UserError& error) {
      write_error(error);
    }
  }
}

constexpr size_t kMainWorker = 0;
constexpr size_t kPrefetchWorker = 1;

}  // namespace

struct DryRunProcess::PrefetchState {
  nlohmann::json request;   // the last request; null if there is none or its job has changed
  bool is_running = false;  // the answer to the last request has not been read
  bool has_worker = true;   // false: the second worker does not exist or is dead; the first does all dry runs
};

DryRunProcess::DryRunProcess(const Job& job, const VirtualGpu& gpu)
    : child_(std::make_unique<ChildProcess>(gpu, num_useful_workers())), prefetch_(std::make_unique<PrefetchState>()) {
  prefetch_->has_worker = child_->num_workers() > 1;
  set_job(job);
}

DryRunProcess::~DryRunProcess() = default;

void DryRunProcess::set_job(const Job& job) {
  for (size_t worker = 0; worker < child_->num_workers(); ++worker) child_->send({{"job", job}}, worker);
  prefetch_->request = nullptr;
}

DryRunResult DryRunProcess::dry_run(const DryRunRequest& request) {
  const nlohmann::json request_json = request;
  if (prefetch_->is_running && prefetch_->request == request_json) {
    prefetch_->is_running = false;
    if (const auto answer = child_->try_receive(kPrefetchWorker)) return answer->get<DryRunResult>();
    prefetch_->has_worker = false;
  }
  child_->send({{"request", request_json}}, kMainWorker);
  return child_->receive().get<DryRunResult>();
}

void DryRunProcess::prefetch(const DryRunRequest& request) {
  if (prefetch_->is_running) {
    if (!child_->has_answered(kPrefetchWorker)) return;
    prefetch_->has_worker = child_->discard_answer(kPrefetchWorker);
  }
  prefetch_->is_running = prefetch_->has_worker;
  if (!prefetch_->has_worker) return;
  prefetch_->request = request;
  child_->send({{"request", prefetch_->request}}, kPrefetchWorker);
}

void serve_dry_runs() {
  const SpawnInfo spawn_info = read_spawn_info();
  set_parent_death_signal(spawn_info.parent);
  const auto line = read_line(stdin);
  if (!line) return;
  std::optional<at::Device> device;
  std::optional<UserError> open_error;  // each worker reports it after the fork
  try {
    device = open_virtual_gpu(*line);
  } catch (const UserError& error) {
    open_error = error;
  }
  watch_parent({.parent = fork_workers(spawn_info), .max_host_bytes = kMaxHostBytes});
  if (open_error) {
    write_error(*open_error);
  } else {
    serve_requests(*device);
  }
}

}  // namespace vlmtrain::planner
