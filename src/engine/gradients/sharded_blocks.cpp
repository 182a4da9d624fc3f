#include "vlmtrain/engine/gradients/sharded_blocks.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/memory_tag.h"
#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::engine {

namespace {

using SectionKind = nn::ShardedBlock::SectionKind;

constexpr std::array kSectionKinds{SectionKind::kTrained, SectionKind::kFrozen};
/// Messages between ranks: a rank has no pass; a rank requests to unshard a block outside of passes
/// (followed by the block's index).
constexpr std::string_view kIdleMessage = "-";
constexpr char kUnshardRequest = 'r';

/// Encodes what a pass needs, for the exchange between ranks: "tb2" is a pass over the text model
/// with a backward pass and two passes over the vision tower.
std::string encode_pass_spec(const nn::ForwardPassSpec& spec) {
  return fmt::format("{}{}{}", spec.runs_text_model ? 't' : '.', spec.runs_backward ? 'b' : '.',
                     spec.num_vision_passes);
}

void announce_slot_use(const at::Tensor& slot) {
  if (slot.is_cuda()) vgpu::announce_use(slot.const_data_ptr(), static_cast<uint64_t>(slot.nbytes()));
}

void announce_end_of_slot_use(const at::Tensor& slot) {
  if (slot.is_cuda()) vgpu::announce_end_of_use(slot.const_data_ptr());
}

int64_t parse_number(const std::string& message) {
  int64_t number = 0;
  std::from_chars(message.data(), message.data() + message.size(), number);
  return number;
}

nn::ForwardPassSpec decode_pass_spec(const std::string& message) {
  return {.num_vision_passes = parse_number(message.substr(2)),
          .runs_text_model = message.at(0) == 't',
          .runs_backward = message.at(1) == 'b'};
}

/// Whether parameters outside of the blocks are trained whose gradients pass through all blocks of
/// the text model or of the vision tower.
struct TrainedNonBlockParts {
  bool text_model = false, vision_tower = false;
};

TrainedNonBlockParts find_trained_non_block_parts(const nn::ParameterStore& store) {
  TrainedNonBlockParts trained_non_block_parts;
  for (const auto& parameter : store.all()) {
    if (!parameter.tensor.requires_grad()) continue;
    const bool is_language_model = parameter.component == nn::Component::kLanguageModel;
    trained_non_block_parts.text_model |= !is_language_model || !parameter.is_in_block;
    trained_non_block_parts.vision_tower |=
        parameter.component == nn::Component::kVisionTower && !parameter.is_in_block;
  }
  return trained_non_block_parts;
}

}  // namespace

ShardedBlocks::ShardedBlocks(nn::ParameterStore& store, GradientReducer& reducer) : store_(store), reducer_(reducer) {
  const memory::ComponentScope weights_scope(memory::Component::kWeights);
  const TrainedNonBlockParts trained_non_block_parts = find_trained_non_block_parts(store);
  bool trains_vision_tower = trained_non_block_parts.vision_tower,
       trains_text_model = trained_non_block_parts.text_model;
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
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i] = at::empty({bytes}, store.options().dtype(at::kByte));
    slot_copiers_[i].emplace(store.options().device());
  }
  if (store.shard().covers_all()) consensus_ = &single_rank_;
  store_.set_block_unsharder(this);
}

ShardedBlocks::~ShardedBlocks() {
  store_.set_block_unsharder(nullptr);
  for (const auto& slot : slots_) announce_end_of_slot_use(slot);
  for (auto& block : blocks_) block.range.sharded_block->reshard();
}

int64_t ShardedBlocks::bytes() const {
  return slots_.front().numel() + slots_.back().numel();
}

std::vector<ShardedBlocks::Block>::iterator ShardedBlocks::find_block(size_t first) {
  return std::ranges::find(blocks_, first, [](const Block& block) { return block.range.first; });
}

/// Exchanges `message` with all ranks, and plans the visits of a pass that covers the needs of all
/// of them. If a rank requests a block instead, sets requested_block_index_.
void ShardedBlocks::exchange_pass_messages(const std::string& message) {
  VLMTRAIN_CHECK(consensus_ != nullptr, "sharded blocks require a consensus among ranks");
  is_any_rank_active_ = false;
  requested_block_index_.reset();
  nn::ForwardPassSpec combined_pass_spec{.num_vision_passes = 0, .runs_text_model = false, .runs_backward = false};
  for (const auto& rank_message : consensus_->all_gather_strings(message)) {
    if (rank_message == kIdleMessage) continue;
    is_any_rank_active_ = true;
    if (rank_message.front() == kUnshardRequest) {
      visits_.clear();
      requested_block_index_ = parse_number(rank_message.substr(1));
      return;
    }
    const auto rank_pass_spec = decode_pass_spec(rank_message);
    combined_pass_spec.num_vision_passes =
        std::max(combined_pass_spec.num_vision_passes, rank_pass_spec.num_vision_passes);
    combined_pass_spec.runs_text_model |= rank_pass_spec.runs_text_model;
    combined_pass_spec.runs_backward |= rank_pass_spec.runs_backward;
  }
  plan_visits(combined_pass_spec);
}

void ShardedBlocks::plan_visits(const nn::ForwardPassSpec& spec) {
  visits_.clear();
  for (int64_t pass = 0; pass < spec.num_vision_passes; ++pass) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].is_vision) visits_.push_back({.block_index = i, .vision_pass = pass});
    }
  }
  for (size_t i = 0; i < blocks_.size() && spec.runs_text_model; ++i) {
    if (!blocks_[i].is_vision) visits_.push_back({.block_index = i});
  }
  const size_t num_forward_visits = visits_.size();
  for (size_t i = num_forward_visits; spec.runs_backward && i-- > 0;) {
    BlockVisit visit = visits_[i];
    visit.is_backward = true;
    if (blocks_[visit.block_index].is_in_backward) visits_.push_back(visit);
  }
}

void ShardedBlocks::begin_pass(const nn::ForwardPassSpec& spec) {
  VLMTRAIN_CHECK(!is_in_pass_, "a pass over the model is in progress already");
  reshard_all_blocks();
  exchange_pass_messages(encode_pass_spec(spec));
  num_local_vision_passes_ = spec.num_vision_passes;
  is_in_pass_ = true;
  current_visit_index_ = kNoIndex;
}

/// Advances to this rank's next visit of the block. If other ranks need more passes of the vision
/// tower than this rank, their visits come after this rank's in the forward pass, and before them
/// in the backward pass.
void ShardedBlocks::prepare_block(size_t first) {
  const auto it = find_block(first);
  if (it == blocks_.end()) return;
  VLMTRAIN_CHECK(is_in_pass_, "a block is read outside a pass");
  const auto block_index = static_cast<size_t>(it - blocks_.begin());
  size_t visit = current_visit_index_ == kNoIndex ? 0 : current_visit_index_ + 1;
  const auto is_local = [&](const BlockVisit& next) {
    return next.block_index == block_index && next.vision_pass < num_local_vision_passes_;
  };
  const auto is_target_visit = [&](const BlockVisit& next) {
    return it->is_vision ? is_local(next) : next.block_index == block_index;
  };
  while (visit < visits_.size() && !is_target_visit(visits_[visit])) ++visit;
  VLMTRAIN_CHECK(visit < visits_.size(), "block {} is read more often than the ranks agreed on", block_index);
  advance_to_visit(visit);
}

void ShardedBlocks::advance_to_visit(size_t visit) {
  for (size_t next = current_visit_index_ == kNoIndex ? 0 : current_visit_index_ + 1; next <= visit; ++next) {
    if (current_visit_index_ != kNoIndex) end_block_use(current_visit_index_);
    current_visit_index_ = next;
    begin_block_use(next);
  }
}

void ShardedBlocks::begin_block_use(size_t visit) {
  Block& block = blocks_[visits_[visit].block_index];
  if (block.slot_index == kNoIndex) start_unshard(block, 0);  // only in the first visit of a pass
  finish_unshard(block);
  const auto is_other_block = [&](const BlockVisit& next) { return next.block_index != visits_[visit].block_index; };
  const auto next = std::find_if(visits_.begin() + static_cast<std::ptrdiff_t>(visit), visits_.end(), is_other_block);
  if (next == visits_.end()) return;
  Block& next_block = blocks_[next->block_index];
  if (next_block.slot_index == kNoIndex) start_unshard(next_block, 1 - block.slot_index);
}

void ShardedBlocks::end_block_use(size_t visit) {
  const BlockVisit& finished_visit = visits_[visit];
  Block& block = blocks_[finished_visit.block_index];
  // Autograd sums the gradients of all passes of the vision tower before it calls the hook of a
  // weight. In the backward pass, vision pass 0 comes last.
  const bool completes_gradients = finished_visit.is_backward && finished_visit.vision_pass == 0;
  if (completes_gradients && !block.range.sharded_block->is_whole()) reducer_.reduce_block(*block.range.sharded_block);
  const bool is_visited_again =
      visit + 1 < visits_.size() && visits_[visit + 1].block_index == finished_visit.block_index;
  if (!is_visited_again) reshard_block(block);
}

void ShardedBlocks::start_unshard(Block& block, size_t slot_index) {
  const nn::ShardedBlock& sharded_block = *block.range.sharded_block;
  block.slot_index = slot_index;
  if (!sharded_block.is_on_host()) {
    start_all_gather(block);
    return;
  }
  memory::SlotCopier& copier = *slot_copiers_[slot_index];
  for (const SectionKind kind : kSectionKinds) {
    if (sharded_block.elements(kind) > 0) copier.start(view_local_shard(block, kind), sharded_block.host_shard(kind));
  }
  if (!sharded_block.is_whole()) copier.run_after_copies([&] { start_all_gather(block); });
}

/// Returns the view of this rank's shard in the block's slot.
at::Tensor ShardedBlocks::view_local_shard(const Block& block, SectionKind kind) const {
  const nn::ShardedBlock& sharded_block = *block.range.sharded_block;
  const int64_t elements = sharded_block.local_shard(kind).numel();
  return sharded_block.view_section(kind, slots_[block.slot_index]).narrow(0, store_.shard().rank * elements, elements);
}

/// Starts to gather the block into its slot, which has the local shard already if it comes from host memory.
void ShardedBlocks::start_all_gather(Block& block) {
  const nn::ShardedBlock& sharded_block = *block.range.sharded_block;
  for (const SectionKind kind : kSectionKinds) {
    if (sharded_block.elements(kind) == 0) continue;
    block.all_gather_handles[static_cast<size_t>(kind)] = consensus_->all_gather_into_tensor_async(
        sharded_block.view_section(kind, slots_[block.slot_index]),
        sharded_block.is_on_host() ? view_local_shard(block, kind) : sharded_block.local_shard(kind));
  }
}

void ShardedBlocks::finish_unshard(Block& block) {
  if (block.is_gathered) return;
  nn::ShardedBlock& sharded_block = *block.range.sharded_block;
  for (const SectionKind kind : kSectionKinds) {
    if (sharded_block.elements(kind) > 0 && !(sharded_block.is_on_host() && sharded_block.is_whole()))
      consensus_->wait_for_all_gather(block.all_gather_handles[static_cast<size_t>(kind)]);
  }
  if (sharded_block.is_on_host()) slot_copiers_[block.slot_index]->wait();
  sharded_block.unshard(slots_[block.slot_index]);
  announce_slot_use(slots_[block.slot_index]);
  block.is_gathered = true;
}

void ShardedBlocks::reshard_block(Block& block) {
  if (block.slot_index == kNoIndex) return;
  finish_unshard(block);
  block.range.sharded_block->reshard();
  announce_end_of_slot_use(slots_[block.slot_index]);
  block.is_gathered = false;
  block.slot_index = kNoIndex;
}

void ShardedBlocks::reshard_all_blocks() {
  for (auto& block : blocks_) reshard_block(block);
}

void ShardedBlocks::end_pass() {
  if (!is_in_pass_) return;
  is_in_pass_ = false;
  if (!visits_.empty()) {
    advance_to_visit(visits_.size() - 1);
    end_block_use(current_visit_index_);
  }
  current_visit_index_ = kNoIndex;
  visits_.clear();
}

void ShardedBlocks::join_remaining_passes() {
  VLMTRAIN_CHECK(!is_in_pass_, "cannot join other ranks' passes during a pass");
  reshard_all_blocks();
  for (;;) {
    exchange_pass_messages(std::string(kIdleMessage));
    if (!is_any_rank_active_) return;
    if (requested_block_index_) {
      Block& block = blocks_.at(static_cast<size_t>(*requested_block_index_));
      start_unshard(block, 0);
      reshard_block(block);
      continue;
    }
    num_local_vision_passes_ = 0;
    is_in_pass_ = true;
    end_pass();
  }
}

void ShardedBlocks::unshard_block(size_t first) {
  VLMTRAIN_CHECK(!is_in_pass_, "cannot unshard a single block during a pass");
  const auto it = find_block(first);
  VLMTRAIN_CHECK(it != blocks_.end(), "parameter {} is not the first of a sharded block", first);
  if (it->is_gathered) return;
  reshard_all_blocks();
  exchange_pass_messages(fmt::format("{}{}", kUnshardRequest, it - blocks_.begin()));
  start_unshard(*it, 0);
  finish_unshard(*it);
}

}  // namespace vlmtrain::engine
