#include "vlmtrain/engine/gradients/sharded_blocks.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/allocation_trace.h"

namespace vlmtrain::engine {

namespace {

using Kind = nn::ShardedBlock::Kind;

constexpr std::array kSectionKinds{Kind::kTrained, Kind::kFrozen};
/// Messages between ranks: a rank has no pass; a rank requests to unshard a block outside of passes
/// (followed by the block's index).
constexpr std::string_view kIdleMessage = "-";
constexpr char kUnshardRequest = 'r';

/// Encodes what a pass needs, for the exchange between ranks: "tb2" is a pass over the text model
/// with a backward pass and two passes over the vision tower.
std::string encode_pass(const nn::PassSpec& spec) {
  return fmt::format("{}{}{}", spec.runs_text_model ? 't' : '.', spec.backward ? 'b' : '.', spec.vision_passes);
}

int64_t parse_number(const std::string& message) {
  int64_t number = 0;
  std::from_chars(message.data(), message.data() + message.size(), number);
  return number;
}

nn::PassSpec decode_pass(const std::string& message) {
  return {.vision_passes = parse_number(message.substr(2)),
          .runs_text_model = message.at(0) == 't',
          .backward = message.at(1) == 'b'};
}

/// Whether parameters outside of the blocks are trained whose gradients pass through all blocks of
/// the text model or of the vision tower.
struct TrainedOutsideBlocks {
  bool text_model = false, vision_tower = false;
};

TrainedOutsideBlocks find_trained_outside_blocks(const nn::ParameterStore& store) {
  TrainedOutsideBlocks trained;
  for (const auto& parameter : store.all()) {
    if (!parameter.tensor.requires_grad()) continue;
    const bool is_language_model = parameter.component == nn::Component::kLanguageModel;
    trained.text_model |= !is_language_model || !parameter.is_in_block;
    trained.vision_tower |= parameter.component == nn::Component::kVisionTower && !parameter.is_in_block;
  }
  return trained;
}

}  // namespace

ShardedBlocks::ShardedBlocks(nn::ParameterStore& store, GradientBuckets& buckets) : store_(store), buckets_(buckets) {
  const memory::ComponentScope weights(memory::Component::kWeights);
  const TrainedOutsideBlocks trained = find_trained_outside_blocks(store);
  bool trains_vision_tower = trained.vision_tower, trains_text_model = trained.text_model;
  int64_t bytes = 0;
  for (const auto& range : store.blocks()) {
    const auto begin = store.all().begin();
    const auto is_trained = [](const nn::Parameter& parameter) { return parameter.tensor.requires_grad(); };
    const bool is_vision = store.all()[range.first].component != nn::Component::kLanguageModel;
    bool& has_trained_parameters = is_vision ? trains_vision_tower : trains_text_model;
    has_trained_parameters |= std::any_of(begin + static_cast<std::ptrdiff_t>(range.first),
                                          begin + static_cast<std::ptrdiff_t>(range.end), is_trained);
    if (!range.sharded_block) continue;
    blocks_.push_back({.range = range, .is_vision = is_vision, .is_in_backward = has_trained_parameters});
    bytes = std::max(bytes, range.sharded_block->bytes());
  }
  for (auto& slot : slots_) slot = at::empty({bytes}, store.options().dtype(at::kByte));
  store_.set_block_unsharder(this);
}

ShardedBlocks::~ShardedBlocks() {
  store_.set_block_unsharder(nullptr);
  for (auto& block : blocks_) block.range.sharded_block->reshard();
}

int64_t ShardedBlocks::bytes() const {
  return slots_.front().numel() + slots_.back().numel();
}

std::vector<ShardedBlocks::Block>::iterator ShardedBlocks::find_block(size_t first) {
  return std::ranges::find(blocks_, first, [](const Block& block) { return block.range.first; });
}

/// Exchanges `message` with all ranks, and plans the visits of a pass that covers the needs of all
/// of them. If a rank requests a block instead, sets requested_block_.
void ShardedBlocks::synchronize_pass(const std::string& message) {
  VLMTRAIN_CHECK(consensus_ != nullptr, "sharded blocks require a consensus among ranks");
  is_any_rank_active_ = false;
  requested_block_.reset();
  nn::PassSpec combined_spec{.vision_passes = 0, .runs_text_model = false, .backward = false};
  for (const auto& rank_message : consensus_->all_gather_strings(message)) {
    if (rank_message == kIdleMessage) continue;
    is_any_rank_active_ = true;
    if (rank_message.front() == kUnshardRequest) {
      visits_.clear();
      requested_block_ = parse_number(rank_message.substr(1));
      return;
    }
    const auto spec = decode_pass(rank_message);
    combined_spec.vision_passes = std::max(combined_spec.vision_passes, spec.vision_passes);
    combined_spec.runs_text_model |= spec.runs_text_model;
    combined_spec.backward |= spec.backward;
  }
  plan_visits(combined_spec);
}

void ShardedBlocks::plan_visits(const nn::PassSpec& spec) {
  visits_.clear();
  for (int64_t pass = 0; pass < spec.vision_passes; ++pass) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].is_vision) visits_.push_back({.block = i, .vision_pass = pass});
    }
  }
  for (size_t i = 0; i < blocks_.size() && spec.runs_text_model; ++i) {
    if (!blocks_[i].is_vision) visits_.push_back({.block = i});
  }
  const size_t num_forward_visits = visits_.size();
  for (size_t i = num_forward_visits; spec.backward && i-- > 0;) {
    Visit visit = visits_[i];
    visit.is_backward = true;
    if (blocks_[visit.block].is_in_backward) visits_.push_back(visit);
  }
}

void ShardedBlocks::begin_pass(const nn::PassSpec& spec) {
  VLMTRAIN_CHECK(!is_in_pass_, "a pass over the model is in progress already");
  reshard_all();
  synchronize_pass(encode_pass(spec));
  local_vision_passes_ = spec.vision_passes;
  is_in_pass_ = true;
  current_visit_ = kNoIndex;
}

/// Advances to this rank's next visit of the block. If other ranks need more passes of the vision
/// tower than this rank, their visits come after this rank's in the forward pass, and before them
/// in the backward pass.
void ShardedBlocks::prepare_block(size_t first) {
  const auto it = find_block(first);
  if (it == blocks_.end()) return;
  VLMTRAIN_CHECK(is_in_pass_, "a block is read outside a pass");
  const auto block = static_cast<size_t>(it - blocks_.begin());
  size_t visit = current_visit_ == kNoIndex ? 0 : current_visit_ + 1;
  const auto is_local = [&](const Visit& next) {
    return next.block == block && next.vision_pass < local_vision_passes_;
  };
  const auto is_target = [&](const Visit& next) { return it->is_vision ? is_local(next) : next.block == block; };
  while (visit < visits_.size() && !is_target(visits_[visit])) ++visit;
  VLMTRAIN_CHECK(visit < visits_.size(), "block {} is read more often than the ranks agreed on", block);
  advance_to_visit(visit);
}

void ShardedBlocks::advance_to_visit(size_t visit) {
  for (size_t next = current_visit_ == kNoIndex ? 0 : current_visit_ + 1; next <= visit; ++next) {
    if (current_visit_ != kNoIndex) leave_visit(current_visit_);
    current_visit_ = next;
    enter_visit(next);
  }
}

void ShardedBlocks::enter_visit(size_t visit) {
  Block& block = blocks_[visits_[visit].block];
  if (block.slot == kNoIndex) start_unshard(block, 0);  // only in the first visit of a pass
  finish_unshard(block);
  const auto is_other_block = [&](const Visit& next) { return next.block != visits_[visit].block; };
  const auto next = std::find_if(visits_.begin() + static_cast<std::ptrdiff_t>(visit), visits_.end(), is_other_block);
  if (next == visits_.end()) return;
  Block& next_block = blocks_[next->block];
  if (next_block.slot == kNoIndex) start_unshard(next_block, 1 - block.slot);
}

void ShardedBlocks::leave_visit(size_t visit) {
  const Visit& finished_visit = visits_[visit];
  Block& block = blocks_[finished_visit.block];
  // Autograd sums the gradients of all passes of the vision tower before it calls the hook of a
  // weight. In the backward pass, vision pass 0 comes last.
  if (finished_visit.is_backward && finished_visit.vision_pass == 0) buckets_.reduce_block(*block.range.sharded_block);
  const bool is_visited_again = visit + 1 < visits_.size() && visits_[visit + 1].block == finished_visit.block;
  if (!is_visited_again) reshard_block(block);
}

void ShardedBlocks::start_unshard(Block& block, size_t slot) {
  const nn::ShardedBlock& sharded = *block.range.sharded_block;
  for (const Kind kind : kSectionKinds) {
    if (sharded.elements(kind) == 0) continue;
    block.handles[static_cast<size_t>(kind)] =
        consensus_->all_gather_into_tensor_async(sharded.view_section(kind, slots_[slot]), sharded.local_shard(kind));
  }
  block.slot = slot;
}

void ShardedBlocks::finish_unshard(Block& block) {
  if (block.is_gathered) return;
  nn::ShardedBlock& sharded = *block.range.sharded_block;
  for (const Kind kind : kSectionKinds) {
    if (sharded.elements(kind) > 0) consensus_->wait_for_all_gather(block.handles[static_cast<size_t>(kind)]);
  }
  sharded.unshard(slots_[block.slot]);
  block.is_gathered = true;
}

void ShardedBlocks::reshard_block(Block& block) {
  if (block.slot == kNoIndex) return;
  finish_unshard(block);
  block.range.sharded_block->reshard();
  block.is_gathered = false;
  block.slot = kNoIndex;
}

void ShardedBlocks::reshard_all() {
  for (auto& block : blocks_) reshard_block(block);
}

void ShardedBlocks::end_pass() {
  if (!is_in_pass_) return;
  is_in_pass_ = false;
  if (!visits_.empty()) {
    advance_to_visit(visits_.size() - 1);
    leave_visit(current_visit_);
  }
  current_visit_ = kNoIndex;
  visits_.clear();
}

void ShardedBlocks::join_remaining_passes() {
  VLMTRAIN_CHECK(!is_in_pass_, "cannot join other ranks' passes during a pass");
  reshard_all();
  for (;;) {
    synchronize_pass(std::string(kIdleMessage));
    if (!is_any_rank_active_) return;
    if (requested_block_) {
      Block& block = blocks_.at(static_cast<size_t>(*requested_block_));
      start_unshard(block, 0);
      reshard_block(block);
      continue;
    }
    local_vision_passes_ = 0;
    is_in_pass_ = true;
    end_pass();
  }
}

void ShardedBlocks::unshard_block(size_t first) {
  VLMTRAIN_CHECK(!is_in_pass_, "cannot unshard a single block during a pass");
  const auto it = find_block(first);
  VLMTRAIN_CHECK(it != blocks_.end(), "parameter {} is not the first of a sharded block", first);
  if (it->is_gathered) return;
  reshard_all();
  synchronize_pass(fmt::format("{}{}", kUnshardRequest, it - blocks_.begin()));
  start_unshard(*it, 0);
  finish_unshard(*it);
}

}  // namespace vlmtrain::engine
