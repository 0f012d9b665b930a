// GGUF's types that store indices of a codebook (IQ1 to IQ3) or ternary numbers (TQ1, TQ2). They expand one block of
// 256 weights at `block` to f32 out [256]. Source: ggml's dequantize_row functions.
#pragma once

#include <cstdint>

namespace smartkv {

void expand_iq2_xxs(const uint8_t* block, float* out);
void expand_iq2_xs(const uint8_t* block, float* out);
void expand_iq2_s(const uint8_t* block, float* out);
void expand_iq3_xxs(const uint8_t* block, float* out);
void expand_iq3_s(const uint8_t* block, float* out);
void expand_iq1_s(const uint8_t* block, float* out);
void expand_iq1_m(const uint8_t* block, float* out);
void expand_tq1_0(const uint8_t* block, float* out);
void expand_tq2_0(const uint8_t* block, float* out);

}  // namespace smartkv
