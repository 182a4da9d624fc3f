#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::io {

/// A value of a pickle. Those that it consists of belong to the Pickle that made it.
struct PickleValue {
  enum class Kind {
    kNone,
    kBool,
    kInteger,
    kFloat,  ///< the number itself is of no use here
    kText,
    kTuple,
    kList,
    kDict,
    kGlobal,   ///< a function or class by name
    kObject,   ///< what a call that nobody knows would have returned
    kStorage,  ///< of tensors
    kTensor,
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;                         ///< kInteger
  std::string text = {};                       ///< kText; kGlobal: "module.name"; kObject: the name of what was called
  std::vector<const PickleValue*> items = {};  ///< kTuple, kList; kDict: keys and values in turn
  at::Tensor tensor = {};                      ///< kTensor; kStorage: its elements, [n]
};

/// Who knows some functions that a pickle calls, and the values that lie beside it.
class PickleHost {
 public:
  PickleHost() = default;
  virtual ~PickleHost() = default;
  PickleHost(const PickleHost&) = delete;
  PickleHost& operator=(const PickleHost&) = delete;

  /// What `function` ("module.name") returns for `arguments`, a kTuple; a kObject where it is not known.
  virtual PickleValue call(const std::string& function, const PickleValue& arguments) = 0;
  virtual PickleValue persistent(const PickleValue& id) = 0;
};

/// A program of Python's pickle format, protocols 2 to 5
/// (https://github.com/python/cpython/blob/main/Lib/pickletools.py), which is run without Python: no code is loaded or
/// called but the host's. Sets, arrays of bytes and numbers beyond 64 bits are refused. Several values may refer to
/// one, and a damaged file's to themselves.
class Pickle {
 public:
  /// Runs the program; `source` is named in errors. data_error where it is damaged, or asks for what is refused.
  Pickle(std::string_view program, std::string source, PickleHost& host);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& result() const { return *result_; }

 private:
  using Kind = PickleValue::Kind;
  enum class Opcode : unsigned char;

  [[noreturn]] void fail(std::string_view reason) const;
  std::string_view take(uint64_t bytes);
  uint64_t take_number(size_t bytes);
  std::string take_line();
  void push(PickleValue value);
  PickleValue* pop();
  PickleValue& top();
  std::vector<const PickleValue*> pop_to_mark();
  std::vector<const PickleValue*> pop_last(size_t count);

  // Each does what its opcodes say, and returns false for others.
  bool push_constant(Opcode opcode);
  bool push_text(Opcode opcode);
  bool push_tuple(Opcode opcode);
  bool fill_container(Opcode opcode);
  bool use_memo(Opcode opcode);
  bool use_globals(Opcode opcode);

  void push_integer(std::string_view bytes);
  void add_items(Kind kind, const std::vector<const PickleValue*>& items);
  void remember(uint64_t place);
  void recall(uint64_t place);
  void call();

  size_t most_places_;  // of the memo
  std::string_view rest_;
  std::string source_;
  PickleHost* host_;
  std::deque<PickleValue> values_;  // all there are, so that none is destroyed recursively
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;  // sizes of the stack
  std::vector<PickleValue*> memo_;
  const PickleValue* result_ = nullptr;
};

}  // namespace vlmtrain::io
