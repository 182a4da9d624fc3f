#include "planner/rehearsed_run.h"

#include <algorithm>
#include <utility>

#include "vlmtrain/distributed/consensus.h"
#include "vlmtrain/distributed/virtual_ranks.h"
#include "vlmtrain/engine/step.h"

namespace vlmtrain::planner {

namespace {

std::vector<data::Sample> samples_of(const std::vector<SampleGroup>& groups) {
  std::vector<data::Sample> samples;
  for (const auto& group : groups) {
    samples.insert(samples.end(), static_cast<size_t>(group.count), data::sample_of(group.shape));
  }
  return samples;
}

/// What the ranks of a rehearsal agree on, of which one is there.
class RehearsedConsensus final : public engine::Consensus {
 public:
  /// `noted` gets each sum.
  RehearsedConsensus(const engine::GradientSums& sums, const Job& job, StepSums& noted) : sums_(sums), noted_(noted) {
    if (job.world_size == 1) return;
    const auto shard = job.shard();
    const int64_t group = shard.is_all() ? job.world_size : shard.count;
    if (group < job.world_size) among_ = Among::kNode;
    ranks_ = distributed::virtual_ranks(job.world_size, job.rank, group);
    all_ = std::make_unique<distributed::RankConsensus>(*ranks_);
  }

  engine::Verdict worst(engine::Verdict own) const override { return all_->worst(own); }
  bool any(bool own) const override { return all_->any(own); }
  std::vector<double> sum(std::vector<double> own) const override { return all_->sum(std::move(own)); }
  void add_up(const at::Tensor& own) const override {
    if (ranks_) noted_.sums.push_back(transfer(own, /*turns=*/2, Among::kAll));
    all_->add_up(own);
  }
  void add_up_parts(const at::Tensor& all) const override {
    noted_.sums.push_back(transfer(all, /*turns=*/1, among_));
    all_->add_up_parts(all);
  }
  void add_up_copies(const at::Tensor& own) const override {
    if (among_ == Among::kNode) noted_.sums.push_back(transfer(own, /*turns=*/2, Among::kCopies));
    all_->add_up_copies(own);
  }
  void add_up_in_group(const at::Tensor& own) const override {
    if (ranks_) noted_.sums.push_back(transfer(own, /*turns=*/2, among_));
    all_->add_up_in_group(own);
  }
  void finish() const override { all_->finish(); }
  engine::GatherTicket gather_parts(const at::Tensor& all) const override {
    noted_.gathers.push_back(transfer(all, /*turns=*/1, among_));
    return all_->gather_parts(all);
  }
  engine::GatherTicket gather_into(const at::Tensor& all, const at::Tensor& own) const override {
    noted_.block_gathers.push_back(transfer(all, /*turns=*/1, among_));
    return all_->gather_into(all, own);
  }
  void finish_gather(engine::GatherTicket ticket) const override { all_->finish_gather(ticket); }
  std::vector<std::string> each(std::string own) const override { return all_->each(std::move(own)); }

  /// All samples of a rehearsal are of the first task. In a run there are gradients of the others too, whose products
  /// take their time.
  std::vector<int64_t> together(std::vector<int64_t> own) const override {
    std::vector<int64_t> all;
    all.reserve(own.size() * static_cast<size_t>(sums_.groups()));
    for (int64_t group = 0; group < sums_.groups(); ++group) {
      for (const int64_t place : own) all.push_back(place + group * static_cast<int64_t>(sums_.size()));
    }
    return all_->together(std::move(all));
  }

 private:
  static Transfer transfer(const at::Tensor& values, int64_t turns, Among among) {
    return {.bytes = static_cast<int64_t>(values.nbytes()), .turns = turns, .among = among};
  }

  const engine::GradientSums& sums_;
  StepSums& noted_;
  Among among_ = Among::kAll;  // that have parts
  std::unique_ptr<distributed::Collectives> ranks_;
  std::unique_ptr<const engine::Consensus> all_ = std::make_unique<const engine::Consensus>();
};

}  // namespace

RehearsedRun::RehearsedRun(const Job& job, at::Device device, bool trains)
    : device_(device), objective_(engine::make_objective(job.objective)), model_(build_model(job, device)) {
  if (!trains) return;
  training_ = std::make_unique<engine::Training>(*model_, job.optimizer, objective_->gradient_groups(), job.shard());
  consensus_ = std::make_unique<RehearsedConsensus>(training_->sums, job, sums_of_step_);
  if (job.world_size > 1) training_->connect(*consensus_);
}

void RehearsedRun::step(const std::vector<SampleGroup>& groups, const engine::StepLayout& layout) {
  try {
    const auto samples = samples_of(groups);
    const auto input = engine::step_input(*objective_, samples);
    sums_of_step_ = {};
    engine::Step step(*training_, input, *consensus_);
    step.accumulate(layout);
    // The last bucket is whole when the backward pass is; with several groups all are handed over behind it.
    const int64_t buckets = std::ssize(sums_of_step_.sums);
    if (training_->blocks) {
      sums_of_step_.passes = layout.cut.micro_batches();
      take_out_sums_of_blocks();
    } else if (training_->sums.groups() == 1) {
      sums_of_step_.overlapping = std::max<int64_t>(0, buckets - 1);
    }
    step.prepare();
    scalars_.emplace(step.apply(engine::LearningRates{}).numbers);
  } catch (const engine::StepOutOfMemory& error) {
    if (error.scarce() == memory::Scarce::kHost) throw rehearsal_lacks_memory(error.what());
    throw;
  }
}

/// They come first: all else is added up when the passes are over.
void RehearsedRun::take_out_sums_of_blocks() {
  auto& sums = sums_of_step_.sums;
  const auto copies = std::ranges::count(sums, Among::kCopies, &Transfer::among);
  const auto others = std::ssize(training_->sums.bucket_elements());
  const auto end = sums.end() - copies - others;
  sums_of_step_.block_sums.assign(sums.begin(), end);
  sums.erase(sums.begin(), end);
}

void RehearsedRun::evaluate(const EvaluatedBatch& batch) const {
  // Further ones take no more: their keys and values have their place from the first on.
  constexpr int64_t kNewTokens = 3;
  const engine::GenerateSettings generation{.device = device_,
                                            .max_new_tokens = std::min(kNewTokens, batch.max_new_tokens),
                                            .room_for_tokens = batch.max_new_tokens};
  const auto samples = samples_of(batch.samples);
  std::vector<data::Sample> prompts;
  for (const auto& group : batch.samples) {
    data::SampleShape question = group.shape;
    question.label_tokens = question.masks = question.mask_pictures = 0;
    const auto count = batch.max_new_tokens > 0 ? static_cast<size_t>(group.count) : 0;
    prompts.insert(prompts.end(), count, data::sample_of(question));
  }
  const auto first = [](const std::vector<data::Sample>& all, size_t count) {
    return std::vector(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(count, all.size())));
  };
  if (const size_t part = samples.size() / 2; part > 0) {
    engine::evaluate_batch(*model_, first(samples, part), first(prompts, part), batch.layout, generation);
  }
  engine::evaluate_batch(*model_, samples, prompts, batch.layout, generation);
}

UserError rehearsal_lacks_memory(const std::string& reason) {
  return run_error("the rehearsal process ran out of the host's memory: {}; give the job more, such as SLURM's --mem",
                   reason);
}

}  // namespace vlmtrain::planner
