#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "text/jinja/runtime/object.h"
#include "text/jinja/runtime/operators.h"

namespace vlmtrain::text::jinja {

/// What `loop` is.
class Loop : public Object, public std::enable_shared_from_this<Loop> {
 public:
  explicit Loop(std::vector<Value> items, int64_t level) : items_(std::move(items)), level_(level) {}

  size_t size() const { return items_.size(); }
  const Value& item() const { return items_[index_]; }
  void set_index(size_t pos) { index_ = pos; }

  std::string_view type_name() const override { return "LoopContext"; }
  std::optional<Value> attribute(std::string_view name) override;
  std::vector<Value> release_values() override;

 private:
  Value update_changed(const Arguments& arguments, Budget& budget);
  Value cycle(const Arguments& arguments) const;

  std::vector<Value> items_;
  int64_t level_;
  size_t index_ = 0;
  std::optional<Value> last_value_;
};

}  // namespace vlmtrain::text::jinja
