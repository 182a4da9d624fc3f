// ProcessGroupGloo.hpp is included here alone: what it names of Gloo stands in gloo_headers/.
#define USE_C10D_GLOO
#define USE_DISTRIBUTED

#include "vlmtrain/distributed/ranks.h"

#include <unistd.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "distributed/store.h"
#include "distributed/watch.h"
#include "vlmtrain/base/host_name.h"

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
        "of {} ranks these did not come to {}:{} within {} s: {}; were they started, and do they get there?",
        launch_.world_size, launch_.host, launch_.port, std::chrono::duration<double>(timeout_).count(), missing);
  }

  SharedTexts& texts_;
  const Launch& launch_;
  const std::chrono::milliseconds timeout_;
  std::vector<std::string> all_;
};

/// Of a connection that is lost c10d says no more than Failure, in many lines.
void quieten_c10d() {
  constexpr int kErrorsOnly = 2;
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = kErrorsOnly;
}

}  // namespace

std::string Failure::text() const {
  return fmt::format("rank {}: {}", rank, reason);
}

class Ranks::Group {
 public:
  Group(const Launch& launch, const RanksSettings& settings)
      : texts_(launch, launch.rank == 0, settings.to_meet),
        watch_(launch, settings, Meeting(texts_, launch, settings.to_meet).names()) {
    auto store =
        c10::make_intrusive<c10d::PrefixStore>("gloo", c10::intrusive_ptr<c10d::Store>::reclaim_copy(&texts_.store()));
    auto options = c10d::ProcessGroupGloo::Options::create_default(kNoTimeout);
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, static_cast<int>(launch.rank),
                                                        static_cast<int>(launch.world_size), options);
  }

  /// A group with calls under way waits for them as it goes, and a lost rank will not come; else it closes its
  /// connections, by which the others see that this rank ends.
  ~Group() {
    if (is_broken_ || !sums_.empty()) static_cast<void>(gloo_.release());
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void begin_sum(at::Tensor values) {
    std::vector<at::Tensor> tensors{std::move(values)};
    sums_.push_back(gloo_->allreduce(tensors));
  }

  void finish_sums() {
    for (const auto& sum : std::exchange(sums_, {})) sum->wait();
  }

  at::Tensor gather(at::Tensor own, int64_t world_size) {
    at::Tensor all = at::empty({world_size * own.numel()}, own.options());
    gloo_->_allgather_base(all, own)->wait();
    return all;
  }

  Watch& watch() { return watch_; }
  void set_broken() { is_broken_ = true; }

 private:
  SharedTexts texts_;
  Watch watch_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  std::vector<c10::intrusive_ptr<c10d::Work>> sums_;  // under way
  bool is_broken_ = false;
};

/// Where a call fails, the reason is another rank's.
template <class Act>
void Ranks::guarded(const Act& act) {
  try {
    act();
  } catch (const std::exception& error) {
    group_->set_broken();
    if (const auto failure = group_->watch().await_failure()) throw UserError(failure->code, failure->text());
    throw run_error("rank {}: the connection to another rank broke: {}", launch_.rank, error.what());
  }
}

Ranks::Ranks(const Launch& launch, const RanksSettings& settings) : launch_(launch) {
  quieten_c10d();
  group_ = std::make_unique<Group>(launch, settings);
}

Ranks::~Ranks() = default;

void Ranks::begin_sum(const at::Tensor& values) {
  VLMTRAIN_CHECK(values.is_cpu() && values.is_contiguous(), "sums of ranks are of contiguous values on the CPU");
  traffic_.bytes += values.nbytes();
  ++traffic_.calls;
  guarded([&] { group_->begin_sum(values); });
}

void Ranks::finish_sums() {
  guarded([&] { group_->finish_sums(); });
}

std::vector<std::string> Ranks::each(const std::string& own) {
  std::vector<std::string> all;
  guarded([&] {
    at::Tensor size = at::empty({1}, at::kLong);
    *size.mutable_data_ptr<int64_t>() = std::ssize(own);
    const at::Tensor sizes = group_->gather(size, world_size());
    const auto* const lengths = sizes.const_data_ptr<int64_t>();
    const int64_t longest = *std::max_element(lengths, lengths + world_size());
    all.resize(static_cast<size_t>(world_size()));
    if (longest == 0) return;
    at::Tensor letters = at::zeros({longest}, at::kByte);
    std::memcpy(letters.mutable_data_ptr(), own.data(), own.size());
    const at::Tensor gathered = group_->gather(letters, world_size());
    const auto* const first = static_cast<const char*>(gathered.const_data_ptr());
    for (int64_t rank = 0; rank < world_size(); ++rank) {
      all[static_cast<size_t>(rank)].assign(first + rank * longest, static_cast<size_t>(lengths[rank]));
    }
  });
  return all;
}

void Ranks::fail(ExitCode code, const std::string& reason) {
  group_->watch().tell({.rank = launch_.rank, .code = code, .reason = reason});
}

}  // namespace vlmtrain::distributed
