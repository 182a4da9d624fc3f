#include "vlmtrain/planner/backend.h"

#include <stdio_ext.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "planner/dry_run/child_process.h"
#include "planner/dry_run/cpu_dry_run.h"
#include "planner/dry_run/dry_run_session.h"
#include "planner/dry_run/protocol.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::planner {

namespace {

/// Dry runs on LibTorch's meta device in this process. A dry run takes about 0.1 s. Throws
/// c10::Error if an operation does not support the meta device.
class HostBackend final : public Backend {
 public:
  /// Builds the model. Throws the exceptions of build_model().
  explicit HostBackend(Job job) : job_(std::move(job)) {
    start_session(CpuDryRun::Detail::kNone, /*with_training=*/true);
  }

  const BackendTraits& traits() const override {
    static constexpr BackendTraits kTraits{.predicts_time = false,
                                           .is_cheap = true,
                                           .is_detail_expensive = true,
                                           .fragments_memory = false,
                                           .num_distinct_micro_batches = 1,
                                           // Smaller chunks run more operations. Not tuned.
                                           .min_loss_chunk_rows = 128};
    return kTraits;
  }

  void set_job(const Job& job) override {
    session_.reset();
    job_ = job;
  }

  DryRunResult dry_run(const DryRunRequest& request) override {
    // A traced session is slow, so that it is used for one request only.
    const bool is_traced = request.with_detail || request.with_timeline;
    if (is_traced || !session_ || is_training_ != request.with_training)
      start_session(is_traced ? CpuDryRun::Detail::kPeakByComponent : CpuDryRun::Detail::kNone, request.with_training);
    DryRunResult result;
    for (size_t i = 0; i < request.steps.size(); ++i) {
      engine::StepLayout layout = make_step_layout(request.step_config, expand_groups(request.steps[i]));
      if (!request.micro_batch_splits.empty()) layout.split = request.micro_batch_splits[i];
      DryRunResult step = session_->step(layout, request.steps[i]);
      result.steps.push_back(step.steps.front());
      result.detail = std::move(step.detail);
      result.seconds += step.seconds;
    }
    for (const EvaluationBatch& batch : request.evaluation_batches)
      result.evaluation_peaks.push_back(session_->evaluate(batch));
    if (is_traced) session_.reset();
    return result;
  }

  std::optional<ModelSizes> find_model_sizes() override {
    if (!session_) start_session(CpuDryRun::Detail::kNone, /*with_training=*/true);
    return ModelSizes{.blocks = {.vision = session_->num_vision_blocks(), .language = session_->num_language_blocks()},
                      .persistent_bytes = session_->persistent_bytes()};
  }

 private:
  void start_session(CpuDryRun::Detail detail, bool with_training) {
    session_.reset();  // only one may exist at a time
    session_.emplace(job_, detail, with_training);
    is_training_ = with_training;
  }

  Job job_;
  std::optional<CpuDryRun> session_;
  bool is_training_ = true;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const Job& job, const PlanTarget& target) {
  if (const auto* const gpu = std::get_if<TargetGpu>(&target))
    return std::make_unique<DryRunProcess>(job, make_virtual_gpu(*gpu));
  return std::make_unique<HostBackend>(job);
}

namespace {

/// Limit of the resident memory of a dry-run process. The largest measured process took 2 GB.
constexpr int64_t kMaxHostBytes = int64_t{8} << 30;

/// Returns the delay of look-ahead answers, which is 0 except in tests that simulate a busy host.
std::chrono::duration<double> get_look_ahead_delay() {
  const char* const seconds = std::getenv("VLMTRAIN_LOOK_AHEAD_DELAY_SECONDS");
  return std::chrono::duration<double>(seconds == nullptr ? 0 : std::atof(seconds));
}

/// Sends an error to the parent as the answer to its request.
void send_error(const UserError& error) {
  write_json_line(stdout, {{"error", {{"code", static_cast<int>(error.code())}, {"message", error.what()}}}});
}

/// Forks one worker process for each connection in `spawn_params`, which becomes its stdin and
/// stdout. Returns, in each process, the process that it has to die with: the first worker for
/// forked workers, the planner's process for the first worker. REQUIRES: no dry run yet, since
/// autograd's threads do not survive a fork.
pid_t fork_workers(const SpawnParams& spawn_params) {
  const pid_t main_worker_pid = getpid();
  for (const int connection : spawn_params.worker_fds) {
    const pid_t child = fork();
    if (child == 0) {
      dup2(connection, STDIN_FILENO);
      dup2(connection, STDOUT_FILENO);
      __fpurge(stdin);  // discard what the first worker has read ahead
    }
    if (child <= 0) {
      for (const int worker_connection : spawn_params.worker_fds) close(worker_connection);
      // If fork() failed, closing the connection tells the parent that this worker does not exist.
      return child == 0 ? main_worker_pid : spawn_params.parent_pid;
    }
  }
  for (const int connection : spawn_params.worker_fds) close(connection);
  return spawn_params.parent_pid;
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
  const auto look_ahead_delay = get_look_ahead_delay();
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
        std::this_thread::sleep_for(look_ahead_delay);
        write_json_line(stdout, forecast);
        continue;
      }
      write_json_line(stdout, dry_run(job, message.at("request").get<DryRunRequest>(), device));
    } catch (const UserError& error) {
      send_error(error);
    }
  }
}

constexpr size_t kMainWorkerIndex = 0;
constexpr size_t kPrefetchWorkerIndex = 1;

}  // namespace

struct DryRunProcess::PrefetchState {
  nlohmann::json request;           // the last request; null if there is none or its job has changed
  bool has_pending_answer = false;  // the answer to the last request has not been read
  bool has_prefetch_worker = true;  // false: the second worker does not exist or is dead; the first does all dry runs
};

DryRunProcess::DryRunProcess(const Job& job, const VirtualGpu& gpu)
    : child_process_(std::make_unique<ChildProcess>(gpu, choose_num_workers())),
      prefetch_state_(std::make_unique<PrefetchState>()) {
  prefetch_state_->has_prefetch_worker = child_process_->num_workers() > 1;
  set_job(job);
}

DryRunProcess::~DryRunProcess() = default;

const BackendTraits& DryRunProcess::traits() const {
  static constexpr BackendTraits kTraits;
  return kTraits;
}

void DryRunProcess::set_job(const Job& job) {
  for (size_t worker = 0; worker < child_process_->num_workers(); ++worker)
    child_process_->send({{"job", job}}, worker);
  prefetch_state_->request = nullptr;
}

DryRunResult DryRunProcess::dry_run(const DryRunRequest& request) {
  const nlohmann::json request_json = request;
  if (prefetch_state_->has_pending_answer && prefetch_state_->request == request_json) {
    prefetch_state_->has_pending_answer = false;
    if (const auto answer = child_process_->try_receive(kPrefetchWorkerIndex)) return answer->get<DryRunResult>();
    prefetch_state_->has_prefetch_worker = false;
  }
  child_process_->send({{"request", request_json}}, kMainWorkerIndex);
  return child_process_->receive().get<DryRunResult>();
}

void DryRunProcess::prefetch(const DryRunRequest& request) {
  if (prefetch_state_->has_pending_answer) {
    if (!child_process_->has_answered(kPrefetchWorkerIndex)) return;
    prefetch_state_->has_prefetch_worker = child_process_->discard_answer(kPrefetchWorkerIndex);
  }
  prefetch_state_->has_pending_answer = prefetch_state_->has_prefetch_worker;
  if (!prefetch_state_->has_prefetch_worker) return;
  prefetch_state_->request = request;
  child_process_->send({{"request", prefetch_state_->request}}, kPrefetchWorkerIndex);
}

void serve_dry_runs() {
  const SpawnParams spawn_params = read_spawn_params();
  set_parent_death_signal(spawn_params.parent_pid);
  const auto line = read_line(stdin);
  if (!line) return;
  std::optional<at::Device> device;
  std::optional<UserError> virtual_gpu_error;  // each worker reports it after the fork
  try {
    device = open_virtual_gpu(*line);
  } catch (const UserError& error) {
    virtual_gpu_error = error;
  }
  watch_parent({.parent_pid = fork_workers(spawn_params), .max_host_bytes = kMaxHostBytes});
  if (virtual_gpu_error) {
    send_error(*virtual_gpu_error);
  } else {
    serve_requests(*device);
  }
}

}  // namespace vlmtrain::planner
