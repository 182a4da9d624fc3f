#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "text/jinja/object.h"
#include "text/jinja/operators.h"

namespace vlmtrain::text::jinja {

/// What `loop` is.
class Loop : public Object, public std::enable_shared_from_this<Loop> {
 public:
  explicit Loop(std::vector<Value> items, int64_t level) : items_(std::move(items)), level_(level) {}

  size_t size() const { return items_.size(); }
  const Value& item() const { return items_[at_]; }
  void move_to(size_t at) { at_ = at; }

  std::string_view type_name() const override { return "LoopContext"; }
  std::optional<Value> attribute(std::string_view name) override;
  std::vector<Value> emptied() override;

 private:
  Value changed(const Arguments& arguments, Budget& budget);
  Value cycle(const Arguments& arguments) const;

  std::vector<Value> items_;
  int64_t level_;
  size_t at_ = 0;
  std::optional<Value> last_;
};

}  // namespace vlmtrain::text::jinja
