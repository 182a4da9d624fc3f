#include "vlmtrain/engine/gathered_blocks.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/place.h"

namespace vlmtrain::engine {

namespace {

using Kind = nn::ShardedBlock::Kind;

constexpr std::array kKinds{Kind::kTrained, Kind::kFrozen};
constexpr std::string_view kIdle = "-";
constexpr char kReads = 'r';

/// As ranks tell each other.
std::string words_of(const nn::PassShape& shape) {
  return fmt::format("{}{}{}", shape.text_model ? 't' : '.', shape.backward ? 'b' : '.', shape.vision_passes);
}

int64_t number_in(const std::string& words) {
  int64_t number = 0;
  std::from_chars(words.data(), words.data() + words.size(), number);
  return number;
}

nn::PassShape shape_in(const std::string& words) {
  return {
      .vision_passes = number_in(words.substr(2)), .text_model = words.at(0) == 't', .backward = words.at(1) == 'b'};
}

/// Whether gradients of anything but the blocks themselves pass through all blocks of the text model, and of the tower.
struct TrainedBefore {
  bool text_model = false, tower = false;
};

TrainedBefore trained_outside_of_blocks(const nn::ParameterStore& store) {
  TrainedBefore trained;
  for (const auto& parameter : store.all()) {
    if (!parameter.tensor.requires_grad()) continue;
    const bool is_of_text = parameter.component == nn::Component::kLanguageModel;
    trained.text_model |= !is_of_text || !parameter.is_in_block;
    trained.tower |= parameter.component == nn::Component::kVisionTower && !parameter.is_in_block;
  }
  return trained;
}

}  // namespace

GatheredBlocks::GatheredBlocks(nn::ParameterStore& store, GradientSums& sums) : store_(store), sums_(sums) {
  const memory::InComponent weights(memory::Component::kWeights);
  const TrainedBefore trained = trained_outside_of_blocks(store);
  bool trains_tower = trained.tower, trains_text_model = trained.text_model;
  int64_t bytes = 0;
  for (const auto& place : store.blocks()) {
    const auto begin = store.all().begin();
    const auto is_trained = [](const nn::Parameter& parameter) { return parameter.tensor.requires_grad(); };
    const bool is_of_vision = store.all()[place.first].component != nn::Component::kLanguageModel;
    bool& trains = is_of_vision ? trains_tower : trains_text_model;
    trains |= std::any_of(begin + static_cast<std::ptrdiff_t>(place.first),
                          begin + static_cast<std::ptrdiff_t>(place.end), is_trained);
    if (!place.sharded) continue;
    blocks_.push_back({.place = place, .is_of_vision = is_of_vision, .is_in_backward = trains});
    bytes = std::max(bytes, place.sharded->bytes());
  }
  for (auto& slot : slots_) slot = at::empty({bytes}, store.options().dtype(at::kByte));
  store_.set_block_weights(this);
}

GatheredBlocks::~GatheredBlocks() {
  store_.set_block_weights(nullptr);
  for (auto& block : blocks_) block.place.sharded->release();
}

int64_t GatheredBlocks::bytes() const {
  return slots_.front().numel() + slots_.back().numel();
}

std::vector<GatheredBlocks::Block>::iterator GatheredBlocks::block_that_begins_with(size_t first) {
  return std::ranges::find(blocks_, first, [](const Block& block) { return block.place.first; });
}

/// The visits of a pass that has what any rank needs.
void GatheredBlocks::agree_on(const std::string& own) {
  VLMTRAIN_CHECK(consensus_ != nullptr, "blocks in parts, and nobody to bring them together with");
  others_pass_ = false;
  read_.reset();
  nn::PassShape all{.vision_passes = 0, .text_model = false, .backward = false};
  for (const auto& words : consensus_->each(own)) {
    if (words == kIdle) continue;
    others_pass_ = true;
    if (words.front() == kReads) {
      visits_.clear();
      read_ = number_in(words.substr(1));
      return;
    }
    const auto shape = shape_in(words);
    all.vision_passes = std::max(all.vision_passes, shape.vision_passes);
    all.text_model |= shape.text_model;
    all.backward |= shape.backward;
  }
  list_visits(all);
}

void GatheredBlocks::list_visits(const nn::PassShape& shape) {
  visits_.clear();
  for (int64_t pass = 0; pass < shape.vision_passes; ++pass) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].is_of_vision) visits_.push_back({.block = i, .vision_pass = pass});
    }
  }
  for (size_t i = 0; i < blocks_.size() && shape.text_model; ++i) {
    if (!blocks_[i].is_of_vision) visits_.push_back({.block = i});
  }
  const size_t forward = visits_.size();
  for (size_t i = forward; shape.backward && i-- > 0;) {
    Visit visit = visits_[i];
    visit.is_backward = true;
    if (blocks_[visit.block].is_in_backward) visits_.push_back(visit);
  }
}

void GatheredBlocks::begin_pass(const nn::PassShape& shape) {
  VLMTRAIN_CHECK(!is_in_pass_, "a pass over the model within another one");
  let_all_go();
  agree_on(words_of(shape));
  own_vision_passes_ = shape.vision_passes;
  is_in_pass_ = true;
  at_ = kNone;
}

/// The next visit of the block that can be this process's: where others need more passes of the tower, theirs are
/// behind its own in the forward pass, and before them in the backward pass.
void GatheredBlocks::use(size_t first) {
  const auto found = block_that_begins_with(first);
  if (found == blocks_.end()) return;
  VLMTRAIN_CHECK(is_in_pass_, "a block is read outside of a pass");
  const auto block = static_cast<size_t>(found - blocks_.begin());
  size_t visit = at_ == kNone ? 0 : at_ + 1;
  const auto is_own = [&](const Visit& next) { return next.block == block && next.vision_pass < own_vision_passes_; };
  const auto is_it = [&](const Visit& next) { return found->is_of_vision ? is_own(next) : next.block == block; };
  while (visit < visits_.size() && !is_it(visits_[visit])) ++visit;
  VLMTRAIN_CHECK(visit < visits_.size(), "block {} is read once more than the ranks agreed on", block);
  go_to(visit);
}

void GatheredBlocks::go_to(size_t visit) {
  for (size_t next = at_ == kNone ? 0 : at_ + 1; next <= visit; ++next) {
    if (at_ != kNone) leave(at_);
    at_ = next;
    arrive(next);
  }
}

void GatheredBlocks::arrive(size_t visit) {
  Block& block = blocks_[visits_[visit].block];
  if (block.slot == kNone) begin_gather(block, 0);  // the first of a pass
  finish_gather(block);
  const auto is_another = [&](const Visit& next) { return next.block != visits_[visit].block; };
  const auto next = std::find_if(visits_.begin() + static_cast<std::ptrdiff_t>(visit), visits_.end(), is_another);
  if (next == visits_.end()) return;
  Block& other = blocks_[next->block];
  if (other.slot == kNone) begin_gather(other, 1 - block.slot);
}

void GatheredBlocks::leave(size_t visit) {
  const Visit& left = visits_[visit];
  Block& block = blocks_[left.block];
  // Autograd adds up what all passes of the tower give a weight before it hands it on.
  if (left.is_backward && left.vision_pass == 0) sums_.finish_block(*block.place.sharded);
  const bool stays = visit + 1 < visits_.size() && visits_[visit + 1].block == left.block;
  if (!stays) let_go(block);
}

void GatheredBlocks::begin_gather(Block& block, size_t slot) {
  const nn::ShardedBlock& sharded = *block.place.sharded;
  for (const Kind kind : kKinds) {
    if (sharded.elements(kind) == 0) continue;
    block.tickets[static_cast<size_t>(kind)] =
        consensus_->gather_into(sharded.whole(kind, slots_[slot]), sharded.part(kind));
  }
  block.slot = slot;
}

void GatheredBlocks::finish_gather(Block& block) {
  if (block.has_arrived) return;
  nn::ShardedBlock& sharded = *block.place.sharded;
  for (const Kind kind : kKinds) {
    if (sharded.elements(kind) > 0) consensus_->finish_gather(block.tickets[static_cast<size_t>(kind)]);
  }
  sharded.lend(slots_[block.slot]);
  block.has_arrived = true;
}

void GatheredBlocks::let_go(Block& block) {
  if (block.slot == kNone) return;
  finish_gather(block);
  block.place.sharded->release();
  block.has_arrived = false;
  block.slot = kNone;
}

void GatheredBlocks::let_all_go() {
  for (auto& block : blocks_) let_go(block);
}

void GatheredBlocks::end_pass() {
  if (!is_in_pass_) return;
  is_in_pass_ = false;
  if (!visits_.empty()) {
    go_to(visits_.size() - 1);
    leave(at_);
  }
  at_ = kNone;
  visits_.clear();
}

void GatheredBlocks::follow() {
  VLMTRAIN_CHECK(!is_in_pass_, "a pass that goes on cannot follow others");
  let_all_go();
  for (;;) {
    agree_on(std::string(kIdle));
    if (!others_pass_) return;
    if (read_) {
      Block& block = blocks_.at(static_cast<size_t>(*read_));
      begin_gather(block, 0);
      let_go(block);
      continue;
    }
    own_vision_passes_ = 0;
    is_in_pass_ = true;
    end_pass();
  }
}

void GatheredBlocks::bring(size_t first) {
  VLMTRAIN_CHECK(!is_in_pass_, "a block is brought for reading within a pass");
  const auto found = block_that_begins_with(first);
  VLMTRAIN_CHECK(found != blocks_.end(), "parameter {} begins no block in parts", first);
  if (found->has_arrived) return;
  let_all_go();
  agree_on(fmt::format("{}{}", kReads, found - blocks_.begin()));
  begin_gather(*found, 0);
  finish_gather(*found);
}

}  // namespace vlmtrain::engine
