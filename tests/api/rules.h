// A rule of the contract as a test row: a good call, one thing spoiled, the status, and what the sentence must say.
#pragma once
#include <gtest/gtest.h>
#include <functional>
#include <memory>
#include <string>
#include "calls.h"

class Handle {
  public:
    Handle() { EXPECT_EQ(fa_create(&handle_, nullptr), FA_OK); }
    ~Handle() { fa_destroy(handle_); }
    operator fa_handle_t() const { return handle_; }

  private:
    fa_handle_t handle_ = nullptr;
};

template <class Call>
struct Rule {
    void (*good)(Call*);
    std::function<void(Call&)> spoil;
    fa_status_t status;
    std::string says;            // begins the sentence
    std::string also;            // goes on in it
    bool in_descriptor = false;  // fa_supports and its kin must say the same
};

template <class Call>
void check_good(fa_handle_t h, void (*good)(Call*)) {
    Call call;
    good(&call);
    ASSERT_EQ(call.run(h), FA_OK) << fa_last_error(h);
    ASSERT_STREQ(fa_last_error(h), "");
}

template <class Call>
void check_descriptor_rule(fa_handle_t h, const Call& call, const Rule<Call>& rule) {
    char text[512] = "";
    uint64_t bytes = 12345;
    EXPECT_EQ(fa_supports(h, &call.d, Call::op), rule.status);
    EXPECT_EQ(std::string(fa_last_error(h)).find(rule.says), 0u) << fa_last_error(h);
    EXPECT_EQ(fa_explain(h, &call.d, Call::op, text, sizeof text), rule.status);
    EXPECT_NE(std::string(text).find(rule.says), std::string::npos) << text;
    EXPECT_EQ(fa_workspace_size(h, &call.d, Call::op, &bytes), rule.status);
    EXPECT_EQ(bytes, 12345u);
}

template <class Call>
void check_rule(fa_handle_t h, const Rule<Call>& rule) {
    SCOPED_TRACE(rule.says + " … " + rule.also);
    Call call;
    rule.good(&call);
    rule.spoil(call);
    const auto before = call.memory.blocks();
    ASSERT_EQ(call.run(h), rule.status) << fa_last_error(h);
    const std::string sentence = fa_last_error(h);
    EXPECT_EQ(sentence.find(rule.says), 0u) << sentence;
    EXPECT_NE(sentence.find(rule.also), std::string::npos) << sentence;
    EXPECT_NE(sentence.find("expected"), std::string::npos) << sentence;
    EXPECT_EQ(call.memory.blocks(), before) << "a refused call wrote to memory";
    if (rule.in_descriptor) check_descriptor_rule(h, call, rule);
    check_good(h, rule.good);
}

template <class Call>
void check_rules(const std::vector<Rule<Call>>& rules) {
    Handle h;
    for (const Rule<Call>& rule : rules) check_rule(h, rule);
}

// A pointer of the args, and a good call that gives it.
template <class Call>
struct Pointer {
    void (*good)(Call*);
    const char* name;
    size_t offset;
    uintptr_t element;  // bytes
    bool optional;      // by an operand bit
    bool input;

    uintptr_t get(const Call& c) const {
        uintptr_t address;
        memcpy(&address, reinterpret_cast<const char*>(&c.a) + offset, sizeof address);
        return address;
    }
    void set(Call& c, uintptr_t address) const { memcpy(reinterpret_cast<char*>(&c.a) + offset, &address, sizeof address); }
};
#define POINTER(good, args, field, element, optional) \
    {good, #field, offsetof(args, field), element, optional, std::is_const<std::remove_pointer_t<decltype(args::field)>>::value}

template <class Call>
std::vector<Rule<Call>> missing(const std::vector<Pointer<Call>>& pointers) {
    std::vector<Rule<Call>> rules;
    for (const Pointer<Call>& p : pointers) {
        rules.push_back({p.good, [p](Call& c) { p.set(c, 0); }, FA_INVALID_ARGUMENT, p.name + std::string(" is NULL:"),
                         p.optional ? "expected a pointer with FA_OPERAND_" : "expected a pointer"});
    }
    return rules;
}

// `without` gives none of the optional ones.
template <class Call>
std::vector<Rule<Call>> uninvited(const std::vector<Pointer<Call>>& pointers, void (*without)(Call*)) {
    alignas(16) static const char somewhere[64] = {};
    std::vector<Rule<Call>> rules;
    for (const Pointer<Call>& p : pointers) {
        if (!p.optional) continue;
        rules.push_back({without, [p](Call& c) { p.set(c, reinterpret_cast<uintptr_t>(somewhere)); }, FA_INVALID_ARGUMENT,
                         p.name + std::string(" is 0x"), "expected NULL without FA_OPERAND_"});
    }
    return rules;
}

template <class Call>
std::vector<Rule<Call>> misaligned(const std::vector<Pointer<Call>>& pointers) {
    std::vector<Rule<Call>> rules;
    for (const Pointer<Call>& p : pointers) {
        for (uintptr_t by = 1; by < p.element; by *= 2) {
            rules.push_back({p.good, [p, by](Call& c) { p.set(c, p.get(c) + by); }, FA_INVALID_ARGUMENT, p.name + std::string(" is 0x"),
                             "multiple of its alignment, " + std::to_string(p.element)});
        }
    }
    return rules;
}

// `output` put where each other tensor of the call is. Of two outputs, either may be named first.
template <class Call>
std::vector<Rule<Call>> shared(const Pointer<Call>& output, const std::vector<Pointer<Call>>& pointers) {
    std::vector<Rule<Call>> rules;
    for (const Pointer<Call>& p : pointers) {
        Call call;
        output.good(&call);
        if (p.name == std::string(output.name) || p.get(call) == 0) continue;
        const std::string first = p.input ? output.name + std::string(" is 0x") : "";
        rules.push_back({output.good, [output, p](Call& c) { output.set(c, p.get(c)); }, FA_INVALID_ARGUMENT, first,
                         p.input ? "shares elements with " + std::string(p.name) + " at" : "shares elements with "});
    }
    return rules;
}

template <class T>
T* moved(T* pointer, int64_t bytes) {
    return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + uintptr_t(bytes));
}

template <class Call>
std::vector<Rule<Call>> all_of(const std::vector<std::vector<Rule<Call>>>& parts) {
    std::vector<Rule<Call>> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}

// The rows of all files, so that one test can see that no field was forgotten.
std::vector<Rule<Forward>> descriptor_rules();
std::vector<Rule<Forward>> forward_rules();
std::vector<Rule<Backward>> backward_rules();
std::vector<Rule<Merge>> merge_rules();
std::vector<Rule<Append>> append_rules();
std::vector<Rule<Rotary>> rotary_rules();
