#include "io/checkpoint/unpickler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

/// Opcodes with their names in pickletools.
enum class Unpickler::Opcode : unsigned char {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kEmptyList = ']',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kEmptyTuple = ')',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

Unpickler::Unpickler(std::string_view pickle_content, std::string source, PickleResolver& resolver)
    : max_memo_entries_(pickle_content.size()),
      remaining_pickle_(pickle_content),
      source_(std::move(source)),
      resolver_(&resolver) {
  while (true) {
    const auto byte = static_cast<unsigned char>(consume_bytes(1)[0]);
    const auto opcode = static_cast<Opcode>(byte);
    if (opcode == Opcode::kStop) break;
    if (!try_execute_constant_opcode(opcode) && !try_execute_string_opcode(opcode) &&
        !try_execute_tuple_opcode(opcode) && !try_execute_container_opcode(opcode) &&
        !try_execute_memo_opcode(opcode) && !try_execute_global_opcode(opcode)) {
      fail(fmt::format("instruction 0x{:02x} is not supported", byte));
    }
  }
  result_ = pop();
}

void Unpickler::fail(std::string_view reason) const {
  throw data_error(
      "{}: cannot read its list of tensors ({}); download or write the file again, or convert it to safetensors in "
      "Python",
      source_, reason);
}

std::string_view Unpickler::consume_bytes(uint64_t bytes) {
  if (bytes > remaining_pickle_.size()) fail("it is truncated");
  const std::string_view consumed_bytes = remaining_pickle_.substr(0, bytes);
  remaining_pickle_.remove_prefix(bytes);
  return consumed_bytes;
}

uint64_t Unpickler::consume_uint(size_t bytes) {
  uint64_t number = 0;
  const std::string_view consumed_bytes = consume_bytes(bytes);
  for (size_t i = bytes; i-- > 0;) number = number << 8 | static_cast<unsigned char>(consumed_bytes[i]);
  return number;
}

std::string Unpickler::consume_line() {
  const size_t end = remaining_pickle_.find('\n');
  if (end == std::string_view::npos) fail("it is truncated");
  std::string line(consume_bytes(end));
  consume_bytes(1);
  return line;
}

void Unpickler::push(PickleValue value) {
  stack_.push_back(&values_.emplace_back(std::move(value)));
}

PickleValue& Unpickler::top() {
  if (stack_.size() <= (mark_positions_.empty() ? 0 : mark_positions_.back())) fail("a value is missing");
  return *stack_.back();
}

PickleValue* Unpickler::pop() {
  PickleValue* const value = &top();
  stack_.pop_back();
  return value;
}

std::vector<const PickleValue*> Unpickler::pop_to_mark() {
  if (mark_positions_.empty()) fail("a mark is missing");
  const size_t count = stack_.size() - mark_positions_.back();
  std::vector<const PickleValue*> items = pop_values(count);
  mark_positions_.pop_back();
  return items;
}

std::vector<const PickleValue*> Unpickler::pop_values(size_t count) {
  std::vector<const PickleValue*> items(count);
  for (size_t i = count; i-- > 0;) items[i] = pop();
  return items;
}

// The values of booleans and floats are not needed to rebuild tensors.
bool Unpickler::try_execute_constant_opcode(Opcode opcode) {
  switch (opcode) {
    case Opcode::kProto:
      consume_bytes(1);  // version of the protocol
      return true;
    case Opcode::kFrame:
      consume_bytes(8);  // length of the frame, a hint for buffering
      return true;
    case Opcode::kNone:
      push({});
      return true;
    case Opcode::kNewTrue:
    case Opcode::kNewFalse:
      push({.kind = Kind::kBool});
      return true;
    case Opcode::kBinFloat:
      consume_bytes(8);
      push({.kind = Kind::kFloat});
      return true;
    case Opcode::kBinInt:
      push({.kind = Kind::kInt, .integer = static_cast<int32_t>(consume_uint(4))});
      return true;
    case Opcode::kBinInt1:
      push({.kind = Kind::kInt, .integer = static_cast<int64_t>(consume_uint(1))});
      return true;
    case Opcode::kBinInt2:
      push({.kind = Kind::kInt, .integer = static_cast<int64_t>(consume_uint(2))});
      return true;
    case Opcode::kLong1:
      push_integer(consume_bytes(consume_uint(1)));
      return true;
    default:
      return false;
  }
}

/// Pushes a little-endian integer in two's complement of at most 8 bytes. No bytes are 0.
void Unpickler::push_integer(std::string_view bytes) {
  if (bytes.size() > sizeof(int64_t)) fail("a number has more than 64 bits");
  const bool is_negative = !bytes.empty() && static_cast<unsigned char>(bytes.back()) >= 0x80;
  uint64_t number = is_negative ? ~uint64_t{0} : 0;
  for (size_t i = bytes.size(); i-- > 0;) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  push({.kind = Kind::kInt, .integer = static_cast<int64_t>(number)});
}

bool Unpickler::try_execute_string_opcode(Opcode opcode) {
  size_t num_length_bytes = 0;
  switch (opcode) {
    case Opcode::kShortBinUnicode:
      num_length_bytes = 1;
      break;
    case Opcode::kBinUnicode:
      num_length_bytes = 4;
      break;
    case Opcode::kBinUnicode8:
      num_length_bytes = 8;
      break;
    default:
      return false;
  }
  push({.kind = Kind::kString, .text = std::string(consume_bytes(consume_uint(num_length_bytes)))});
  return true;
}

bool Unpickler::try_execute_tuple_opcode(Opcode opcode) {
  std::vector<const PickleValue*> items;
  switch (opcode) {
    case Opcode::kEmptyTuple:
      break;
    case Opcode::kTuple1:
      items = pop_values(1);
      break;
    case Opcode::kTuple2:
      items = pop_values(2);
      break;
    case Opcode::kTuple3:
      items = pop_values(3);
      break;
    case Opcode::kTuple:
      items = pop_to_mark();
      break;
    default:
      return false;
  }
  push({.kind = Kind::kTuple, .items = std::move(items)});
  return true;
}

bool Unpickler::try_execute_container_opcode(Opcode opcode) {
  switch (opcode) {
    case Opcode::kMark:
      mark_positions_.push_back(stack_.size());
      return true;
    case Opcode::kPop:
      pop();
      return true;
    case Opcode::kPopMark:
      pop_to_mark();
      return true;
    case Opcode::kEmptyList:
      push({.kind = Kind::kList});
      return true;
    case Opcode::kEmptyDict:
      push({.kind = Kind::kDict});
      return true;
    case Opcode::kAppend:
      add_items(Kind::kList, pop_values(1));
      return true;
    case Opcode::kAppends:
      add_items(Kind::kList, pop_to_mark());
      return true;
    case Opcode::kSetItem:
      add_items(Kind::kDict, pop_values(2));
      return true;
    case Opcode::kSetItems:
      add_items(Kind::kDict, pop_to_mark());
      return true;
    default:
      return false;
  }
}

void Unpickler::add_items(Kind kind, const std::vector<const PickleValue*>& items) {
  if (kind == Kind::kDict && items.size() % 2 != 0) fail("a key has no value");
  PickleValue& container = top();
  if (container.kind == Kind::kOpaque) return;  // a subclass of list or dict, whose items are not needed
  if (container.kind != kind) fail("items are added to an object that is not a list, dict or set");
  container.items.insert(container.items.end(), items.begin(), items.end());
}

bool Unpickler::try_execute_memo_opcode(Opcode opcode) {
  switch (opcode) {
    case Opcode::kBinPut:
      store_in_memo(consume_uint(1));
      return true;
    case Opcode::kLongBinPut:
      store_in_memo(consume_uint(4));
      return true;
    case Opcode::kMemoize:
      store_in_memo(memo_.size());
      return true;
    case Opcode::kBinGet:
      push_from_memo(consume_uint(1));
      return true;
    case Opcode::kLongBinGet:
      push_from_memo(consume_uint(4));
      return true;
    default:
      return false;
  }
}

void Unpickler::store_in_memo(uint64_t index) {
  PickleValue& value = top();
  if (index >= max_memo_entries_) fail("a memo index is out of range");
  if (index >= memo_.size()) memo_.resize(index + 1, nullptr);
  memo_[index] = &value;
}

void Unpickler::push_from_memo(uint64_t index) {
  if (index >= memo_.size() || memo_[index] == nullptr) fail("it reads a memo entry that does not exist");
  stack_.push_back(memo_[index]);
}

bool Unpickler::try_execute_global_opcode(Opcode opcode) {
  switch (opcode) {
    case Opcode::kGlobal: {
      const std::string module = consume_line();
      push({.kind = Kind::kGlobal, .text = module + '.' + consume_line()});
      return true;
    }
    case Opcode::kStackGlobal: {
      const auto names = pop_values(2);
      if (names[0]->kind != Kind::kString || names[1]->kind != Kind::kString) fail("a function's name is not a string");
      push({.kind = Kind::kGlobal, .text = names[0]->text + '.' + names[1]->text});
      return true;
    }
    case Opcode::kReduce:
    case Opcode::kNewObj:
      execute_call();
      return true;
    case Opcode::kBuild:  // sets attributes of an object; none is needed, such as _metadata of a state_dict
      pop();
      top();
      return true;
    case Opcode::kBinPersId:
      push(resolver_->persistent_load(*pop()));
      return true;
    default:
      return false;
  }
}

void Unpickler::execute_call() {
  const PickleValue* const arguments = pop();
  const PickleValue* const function = pop();
  if (arguments->kind != Kind::kTuple) fail("the arguments of a call are not a tuple");
  // A called object may itself be the result of an unknown call. The result is then unknown too.
  const bool is_global = function->kind == Kind::kGlobal;
  if (!is_global && function->kind != Kind::kOpaque) fail("it calls an object that is not a function");
  push(is_global ? resolver_->call_function(function->text, *arguments)
                 : PickleValue{.kind = Kind::kOpaque, .text = function->text});
}

}  // namespace vlmtrain::io
