// ProcessGroupGloo.hpp is included here alone: what it names of Gloo stands in gloo_headers/.
#define USE_C10D_GLOO
#define USE_DISTRIBUTED

#include "vlmtrain/distributed/ranks.h"

#include <unistd.h>

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>
#include <exception>
#include <thread>

#include "distributed/backends.h"
#include "distributed/nccl_plugin.h"
#include "distributed/still_backend.h"
#include "distributed/store.h"
#include "distributed/watch.h"
#include "vlmtrain/base/host_name.h"
#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain::distributed {

namespace {

/// Whether a rank is there is the watch's to say: how long it takes for a step or a checkpoint is nobody's business.
constexpr auto kNoTimeout = std::chrono::hours(24);

std::string name_of_process() {
  return fmt::format("process {} on {}", getpid(), host_name());
}

std::string here(int64_t rank) {
  return fmt::format("here/{}", rank);
}

/// Where the ranks wait for each other. Rank 0 says when it is enough.
class Meeting {
 public:
  Meeting(SharedTexts& texts, const Launch& launch, std::chrono::milliseconds timeout)
      : texts_(texts), launch_(launch), timeout_(timeout) {
    for (int64_t rank = 0; rank < launch.world_size; ++rank) all_.push_back(here(rank));
  }

  /// The names of all ranks' processes, once they are there.
  std::vector<std::string> names() {
    try {
      texts_.set(here(launch_.rank), name_of_process());
      const auto deadline = std::chrono::steady_clock::now() + timeout_;
      while (!texts_.has(all_)) {
        if (launch_.rank == 0 && std::chrono::steady_clock::now() > deadline) texts_.set(kMissing, missing());
        if (texts_.has({kMissing})) give_up(texts_.get({kMissing}).front());
        std::this_thread::sleep_for(kPause);
      }
      return texts_.get(all_);
    } catch (const c10::Error&) {
      throw run_error("rank 0 at {}:{} was gone before all {} ranks were there; its own words say why", launch_.host,
                      launch_.port, launch_.world_size);
    }
  }

 private:
  static constexpr const char* kMissing = "missing";
  static constexpr auto kPause = std::chrono::milliseconds(20);

  std::string missing() {
    std::string ranks;
    for (int64_t rank = 0; rank < launch_.world_size; ++rank) {
      if (!texts_.has({here(rank)})) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
    }
    return ranks;
  }

  [[noreturn]] void give_up(const std::string& missing) const {
    // The others ask rank 0 for these words.
    if (launch_.rank == 0) std::this_thread::sleep_for(20 * kPause);
    throw run_error(
        "of {} ranks these did not come to {}:{} within {} s: {}; were they started, and do they get there? "
        "distributed.rendezvous_seconds sets how long they are waited for",
        launch_.world_size, launch_.host, launch_.port, std::chrono::duration<double>(timeout_).count(), missing);
  }

  SharedTexts& texts_;
  const Launch& launch_;
  const std::chrono::milliseconds timeout_;
  std::vector<std::string> all_;
};

/// Of a connection that is lost c10d says no more than Failure, in many lines. Its record of the last calls is
/// nobody's: it takes time in each, and is not safe where ranks are threads of one process, as in tests.
void quieten_c10d() {
  constexpr int kErrorsOnly = 2;
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = kErrorsOnly;
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
}

}  // namespace

std::string Failure::text() const {
  return fmt::format("rank {}: {}", rank, reason);
}

class Ranks::Group {
 public:
  Group(const Launch& launch, const RanksSettings& settings)
      : launch_(launch),
        texts_(launch, launch.rank == 0, settings.to_meet),
        watch_(launch, settings, Meeting(texts_, launch, settings.to_meet).names()),
        collectives_({.host = gloo(all()), .device = {}}, [this](const std::exception& error) { explain(error); }) {}

  Watch& watch() { return watch_; }
  Collectives& collectives() { return collectives_; }

  void connect(at::Device device) {
    const auto on_device = [&](const Members& members) {
      return Collectives::Backends{.host = {}, .device = backend_on(device, members)};
    };
    if (group_size_ == launch_.world_size) {
      collectives_.connect_device(on_device(all()), {}, {});
    } else {
      collectives_.connect_device(on_device(all()), on_device(group()), on_device(copies()));
    }
  }

  void share_in_groups_of(int64_t count) {
    VLMTRAIN_CHECK(count > 0 && launch_.world_size % count == 0, "groups of {} of {} ranks", count, launch_.world_size);
    group_size_ = count;
    if (count == launch_.world_size) return;
    collectives_.share_in_groups({.host = gloo(group()), .device = {}}, {.host = gloo(copies()), .device = {}});
  }

 private:
  /// Ranks that tell each other something, and this one among them.
  struct Members {
    std::string name;
    int64_t rank, count;
  };

  Members all() const { return {.name = "all", .rank = launch_.rank, .count = launch_.world_size}; }
  Members group() const {
    const int64_t number = launch_.rank / group_size_;
    return {.name = fmt::format("group{}", number), .rank = launch_.rank % group_size_, .count = group_size_};
  }
  Members copies() const {
    const int64_t place = launch_.rank % group_size_;
    return {.name = fmt::format("copies{}", place),
            .rank = launch_.rank / group_size_,
            .count = launch_.world_size / group_size_};
  }

  c10::intrusive_ptr<c10d::Store> store_named(const std::string& name) {
    return c10::make_intrusive<c10d::PrefixStore>(name, c10::intrusive_ptr<c10d::Store>::reclaim_copy(&texts_.store()));
  }

  c10::intrusive_ptr<c10d::Backend> gloo(const Members& members) {
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store_named("gloo/" + members.name),
                                                       static_cast<int>(members.rank), static_cast<int>(members.count),
                                                       c10d::ProcessGroupGloo::Options::create_default(kNoTimeout));
  }

  c10::intrusive_ptr<c10d::Backend> backend_on(at::Device device, const Members& members) {
    VLMTRAIN_CHECK(!device.is_cpu(), "the host is connected from the start");
    const auto rank = static_cast<int>(members.rank), count = static_cast<int>(members.count);
    if (vgpu::attached() != nullptr) return c10::make_intrusive<StillBackend>(rank, count);
    return nccl_backend(store_named("nccl/" + members.name), rank, count, device);
  }

  /// Where a call fails, the reason is another rank's.
  [[noreturn]] void explain(const std::exception& error) {
    if (const auto failure = watch_.await_failure()) throw UserError(failure->code, failure->text());
    throw run_error("the connection to another rank broke: {}", error.what());
  }

  const Launch& launch_;
  int64_t group_size_ = launch_.world_size;
  SharedTexts texts_;
  Watch watch_;
  Collectives collectives_;
};

Ranks::Ranks(const Launch& launch, const RanksSettings& settings) : launch_(launch) {
  static const bool is_quiet = (quieten_c10d(), true);
  static_cast<void>(is_quiet);
  group_ = std::make_unique<Group>(launch_, settings);
}

Ranks::~Ranks() = default;

Collectives& Ranks::collectives() {
  return group_->collectives();
}

const Collectives& Ranks::collectives() const {
  return group_->collectives();
}

void Ranks::share_in_groups_of(int64_t count) {
  group_->share_in_groups_of(count);
}

void Ranks::connect(at::Device device) {
  group_->connect(device);
}

bool Ranks::has_lost_first() const {
  return group_->watch().has_lost_first();
}

void Ranks::fail(ExitCode code, const std::string& reason) {
  group_->watch().tell({.rank = launch_.rank, .code = code, .reason = reason});
}

}  // namespace vlmtrain::distributed
