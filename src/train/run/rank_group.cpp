#include "train/run/rank_group.h"

#include <unistd.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::train {

namespace {

/// Longest wait for a checkpoint that is being written when a rank is lost. A checkpoint is worth
/// some idle minutes of all machines, but an unreachable file system would block forever. If the
/// time runs out, the checkpoint remains under its temporary name, which the next start removes.
/// Not tuned.
constexpr auto kMaxCheckpointWriteTime = std::chrono::minutes(5);

/// Ends the process without unwinding the main thread, which may wait in NCCL or Gloo for a lost
/// rank.
[[noreturn]] void exit_with_failure(const distributed::RankFailure& failure) {
  [[maybe_unused]] const auto cleanup_lock = io::lock_and_remove_temp_files();
  spdlog::error("{}; this rank exits too", failure.format_message());
  spdlog::shutdown();
  _exit(static_cast<int>(failure.code));
}

/// First character of the message that ranks exchange in any_rank_stops().
constexpr char kStopFlag = 's', kContinueFlag = 'g';
constexpr const char* kRanksPerNodeEnvVar = "VLMTRAIN_RANKS_PER_NODE";

}  // namespace

RankGroup::RankGroup(const std::optional<distributed::LaunchInfo>& launch,
                     std::chrono::milliseconds rendezvous_timeout) {
  if (!launch) {
    consensus_ = std::make_unique<engine::Consensus>();
    return;
  }
  context_ = std::make_unique<distributed::DistributedContext>(
      *launch, distributed::DistributedContextOptions{.rendezvous_timeout = rendezvous_timeout,
                                                      .on_hang = [this](const distributed::RankFailure& failure) {
                                                        checkpoint_lock_.close(kMaxCheckpointWriteTime);
                                                        exit_with_failure(failure);
                                                      }});
  consensus_ = std::make_unique<distributed::RankConsensus>(context_->collectives());
  if (is_main_process()) {
    spdlog::info("{} ranks, started by {}, rendezvous at {}:{}", launch->world_size, launch->launcher,
                 launch->master_address, launch->master_port);
  }
  const std::string hostname = get_host_name();
  hostnames_ = consensus_->all_gather_strings(hostname);
  local_world_size_ = std::ranges::count(hostnames_, hostname);
  num_nodes_ = std::ssize(std::set<std::string>(hostnames_.begin(), hostnames_.end()));
}

int64_t RankGroup::compute_ranks_per_node() const {
  if (is_single_process()) return 1;
  if (const char* const value = std::getenv(kRanksPerNodeEnvVar)) {
    const int64_t count = parse_int_after_prefix("", value).value_or(0);
    if (count > 0 && world_size() % count == 0) return count;
    throw usage_error("{}={}: does not divide {} ranks; set it to a divisor, or unset it", kRanksPerNodeEnvVar, value,
                      world_size());
  }
  // The first node has the ranks before the first different host name.
  const int64_t count =
      std::ranges::find_if(hostnames_, [this](const auto& host) { return host != hostnames_.front(); }) -
      hostnames_.begin();
  for (int64_t rank = 0; rank < world_size(); ++rank) {
    const auto& node_hostname = hostnames_[static_cast<size_t>(rank / count * count)];
    const bool is_on_same_node = hostnames_[static_cast<size_t>(rank)] == node_hostname;
    const bool starts_node =
        rank == 0 || rank % count != 0 || hostnames_[static_cast<size_t>(rank - 1)] != node_hostname;
    if (is_on_same_node && starts_node && world_size() % count == 0) continue;
    throw usage_error(
        "{}=hybrid: requires the same number of consecutive ranks on each node, but {} has {} of {} ranks and rank {} "
        "is on {}; start equally many on each, or set full",
        keys::distributed::kSharding, hostnames_.front(), std::ranges::count(hostnames_, hostnames_.front()),
        world_size(), rank, hostnames_[static_cast<size_t>(rank)]);
  }
  return count;
}

int64_t RankGroup::compute_num_replicas(std::optional<engine::ShardingStrategy> sharding) const {
  if (is_single_process() || (sharding && sharding != engine::ShardingStrategy::kHybrid)) return 1;
  try {
    return world_size() / compute_ranks_per_node();
  } catch (const UserError&) {
    if (sharding) throw;
    return 1;  // `auto` does not choose `hybrid` then
  }
}

void RankGroup::set_shard_group_size(int64_t count) const {
  if (!is_single_process()) context_->set_shard_group_size(count);
}

data::LoaderShard RankGroup::make_loader_shard() const {
  if (is_single_process()) return {};
  return {.rank = context_->rank(),
          .world_size = context_->world_size(),
          .all_gather_strings = [this](const std::string& content) { return consensus_->all_gather_strings(content); }};
}

void RankGroup::main_process_first(const std::function<void()>& action) const {
  if (is_main_process()) action();
  if (is_single_process()) return;
  consensus_->all_gather_strings("");  // a barrier
  if (!is_main_process()) action();
}

void RankGroup::connect(at::Device device) const {
  if (is_single_process()) return;
  if (const auto difference = find_difference(c10::DeviceTypeName(device.type(), /*lower_case=*/true))) {
    throw usage_error("--device: {} another device than rank 0 ({}, not {}); give the same to all ranks",
                      difference->ranks, difference->value, difference->value_0);
  }
  if (device.is_cpu()) return;
  if (!planner::is_on_virtual_gpu())
    check_gpu_not_shared(fmt::format("{} of {}", memory::get_pci_bus_id(device), get_host_name()));
  context_->connect_device(device);
}

void RankGroup::check_gpu_not_shared(const std::string& gpu_name) const {
  std::map<std::string, std::vector<size_t>> ranks_by_gpu;
  const auto gpu_names = consensus_->all_gather_strings(gpu_name);
  for (size_t rank = 0; rank < gpu_names.size(); ++rank) ranks_by_gpu[gpu_names[rank]].push_back(rank);
  for (const auto& [gpu, ranks] : ranks_by_gpu) {
    if (ranks.size() == 1) continue;
    throw usage_error(
        "ranks {} have the same GPU, {}; start one rank per GPU, and set CUDA_VISIBLE_DEVICES of each to its own GPU",
        fmt::join(ranks, ", "), gpu);
  }
}

std::optional<RankGroup::Difference> RankGroup::find_difference(const std::string& value) const {
  if (is_single_process()) return std::nullopt;
  const auto values = consensus_->all_gather_strings(value);
  std::vector<size_t> differing_ranks;
  for (size_t rank = 1; rank < values.size(); ++rank) {
    if (values[rank] != values.front()) differing_ranks.push_back(rank);
  }
  if (differing_ranks.empty()) return std::nullopt;
  return Difference{.ranks = differing_ranks.size() == 1
                                 ? fmt::format("rank {} has", differing_ranks.front())
                                 : fmt::format("ranks {} have", fmt::join(differing_ranks, ", ")),
                    .value = values[differing_ranks.front()],
                    .value_0 = values.front()};
}

void RankGroup::check_same_start(int64_t step) const {
  const auto difference = find_difference(std::to_string(step));
  if (!difference) return;
  throw usage_error("{}: {} a checkpoint of step {}, but rank 0 has one of step {}; set it to a folder that all share",
                    keys::output::kDir, difference->ranks, difference->value, difference->value_0);
}

bool RankGroup::any_rank_stops(bool stops) const {
  if (is_single_process()) return stops;
  const auto values = consensus_->all_gather_strings(
      fmt::format("{}{}", stops ? kStopFlag : kContinueFlag, context_->collectives().compute_wait_seconds()));
  rank_wait_seconds_.clear();
  for (const auto& text : values) rank_wait_seconds_.push_back(std::stod(text.substr(1)));
  return std::ranges::any_of(values, [](const std::string& text) { return text.front() == kStopFlag; });
}

std::string RankGroup::describe_slowest_rank() const {
  if (rank_wait_seconds_.empty()) return {};
  const auto [min_wait, max_wait] = std::ranges::minmax_element(rank_wait_seconds_);
  if (*max_wait == 0) return {};  // virtual GPUs do not wait
  return fmt::format("; rank {} was the slowest: it waited {:.1f} s for the others, rank {} {:.1f} s",
                     min_wait - rank_wait_seconds_.begin(), *min_wait, max_wait - rank_wait_seconds_.begin(),
                     *max_wait);
}

std::string RankGroup::describe_collective_traffic(int64_t steps) const {
  if (is_single_process() || steps == 0) return {};
  const auto format_per_step = [steps](const distributed::CollectiveTraffic& traffic, const char* calls) {
    return fmt::format("{} in {:.1f} {} per step", format_bytes(traffic.bytes / steps),
                       static_cast<double>(traffic.num_calls) / static_cast<double>(steps), calls);
  };
  const auto& ranks = context_->collectives();
  std::string text = "ranks reduced " + format_per_step(ranks.all_reduce_traffic(), "all-reduces");
  if (ranks.all_gather_traffic().num_calls > 0) {
    text += fmt::format(", {}, and gathered weights of {}",
                        format_per_step(ranks.reduce_scatter_traffic(), "reduce-scatters"),
                        format_per_step(ranks.all_gather_traffic(), "all-gathers"));
  }
  return text;
}

bool RankGroup::are_reductions_complete() const {
  // Long enough for ranks that are alive, which complete a reduction together. Not tuned.
  constexpr auto kReductionTimeout = std::chrono::seconds(2);
  return is_single_process() || context_->collectives().poll_until_complete(kReductionTimeout);
}

void RankGroup::run_and_report_failure(const std::function<void()>& action) const {
  if (is_single_process()) return action();
  try {
    action();
    consensus_->all_gather_strings("");  // waits for rank 0, which may still write files
  } catch (const UserError& error) {
    context_->report_failure(error.code(), error.what());
    // Destroying the model would wait for the incomplete reduction on the device.
    if (!are_reductions_complete()) exit_with_failure({.rank = rank(), .code = error.code(), .reason = error.what()});
    if (is_main_process()) throw;
    spdlog::error("{}", error.what());
    if (context_->has_lost_rank0()) throw;
    throw AlreadyReportedError(error.code(), error.what());  // rank 0 ends with the same message
  } catch (const std::exception& error) {
    context_->report_failure(ExitCode::kFailed, get_first_line(error.what()));
    throw;
  }
}

}  // namespace vlmtrain::train
