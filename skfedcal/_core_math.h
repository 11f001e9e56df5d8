/* Exponential and logarithm of vectors, for one level of instructions.

   Included by _core.c once per level, whose vectors have WIDTH bytes. Each lane sees the
   same operations in the same order at every level. Nothing is contracted to a fused multiply-add (-ffp-contract=off), and no
   function of the C library is called: bits do not depend on the processor.

   Accuracy against mpmath (tests/test_core.py): 2^x, exp(x), log(x) and log(1 + x) within 1.25
   ulp.
   Coefficients are interpolations at Chebyshev points. */

/* a where the mask is all ones, b elsewhere. */
INLINE FN(vd) FN(pick_d)(FN(vi) mask, FN(vd) a, FN(vd) b) { return (FN(vd))(((FN(vi))a & mask) | ((FN(vi))b & ~mask)); }
INLINE FN(vf) FN(pick_f)(FN(vw) mask, FN(vf) a, FN(vf) b) { return (FN(vf))(((FN(vw))a & mask) | ((FN(vw))b & ~mask)); }

/* Larger of two, a > b ? a : b: b where one of them is NaN. */
INLINE FN(vd) FN(max_d)(FN(vd) a, FN(vd) b)
{
#if !defined(__x86_64__)
    return FN(pick_d)((FN(vi))(a > b), a, b);
#elif WIDTH == 16
    return __builtin_ia32_maxpd(a, b);
#elif WIDTH == 32
    return __builtin_ia32_maxpd256(a, b);
#else
    return __builtin_ia32_maxpd512_mask(a, b, a, -1, 4);
#endif
}

INLINE FN(vf) FN(max_f)(FN(vf) a, FN(vf) b)
{
#if !defined(__x86_64__)
    return FN(pick_f)((FN(vw))(a > b), a, b);
#elif WIDTH == 16
    return __builtin_ia32_maxps(a, b);
#elif WIDTH == 32
    return __builtin_ia32_maxps256(a, b);
#else
    return __builtin_ia32_maxps512_mask(a, b, a, -1, 4);
#endif
}

/* Smaller of two, a < b ? a : b: b where one of them is NaN. */
INLINE FN(vd) FN(min_d)(FN(vd) a, FN(vd) b)
{
#if !defined(__x86_64__)
    return FN(pick_d)((FN(vi))(a < b), a, b);
#elif WIDTH == 16
    return __builtin_ia32_minpd(a, b);
#elif WIDTH == 32
    return __builtin_ia32_minpd256(a, b);
#else
    return __builtin_ia32_minpd512_mask(a, b, a, -1, 4);
#endif
}

/* 2^x for x up to 1023; exactly 0 below -1022.5, where results would be subnormal. NaN
   stays NaN. 2^x = 2^k 2^r, |r| <= 1/2; even and odd terms of the series apart. Adding
   1.5 2^52 rounds to a whole number and leaves it in the low bits, here with the bias of
   the exponent. */
INLINE FN(vd) FN(exp2_d)(FN(vd) x)
{
    x = FN(max_d)((FN(vd)){0} - 1023.0, x);
    const FN(vd) shifted = x + (0x1.8p52 + 1023.0);
    const FN(vd) r = x - (shifted - (0x1.8p52 + 1023.0)), s = r * r;
    FN(vd) even = 0x1.e5ea03c5ae3ccp-28 * s + 0x1.62bfe45ac08ccp-20;
    FN(vd) odd = 0x1.e9bbe9e45e5a6p-32 * s + 0x1.b525087314718p-24;
    even = even * s + 0x1.4309130379f8bp-13;
    odd = odd * s + 0x1.ffcbfc61f8673p-17;
    even = even * s + 0x1.3b2ab6fba385bp-7;
    odd = odd * s + 0x1.5d87fe78a5dc3p-10;
    even = even * s + 0x1.ebfbdff82c590p-3;
    odd = odd * s + 0x1.c6b08d704a0c0p-5;
    const FN(vd) rest = s * (odd * r + even) + r * 0x1.62e42fefa39efp-1;
    return (rest + 1.0) * (FN(vd))((FN(vi))shifted << 52);
}

/* As exp2_d, for x up to 127; exactly 0 below -126.5. */
INLINE FN(vf) FN(exp2_f)(FN(vf) x)
{
    x = FN(max_f)((FN(vf)){0} - 127.0f, x);
    const FN(vf) shifted = x + (0x1.8p23f + 127.0f);
    const FN(vf) r = x - (shifted - (0x1.8p23f + 127.0f)), s = r * r;
    FN(vf) even = 0x1.43e722p-13f * s + 0x1.3b2a7fp-7f;
    const FN(vf) odd = 0x1.5ec877p-10f * s + 0x1.c6afedp-5f;
    even = even * s + 0x1.ebfbdfp-3f;
    const FN(vf) rest = s * (odd * r + even) + r * 0x1.62e430p-1f;
    return (rest + 1.0f) * (FN(vf))((FN(vw))shifted << 23);
}

/* exp(x) for x up to 709; exactly 0 below -708.4, where results would be subnormal. As
   exp2_d, with r = x - k log(2) by a product in two parts: for softmax, whose small entries
   must be as accurate as large ones. */
INLINE FN(vd) FN(exp_d)(FN(vd) x)
{
    x = FN(max_d)((FN(vd)){0} - 709.2, x);
    const FN(vd) shifted = x * LOG2_E + (0x1.8p52 + 1023.0), k = shifted - (0x1.8p52 + 1023.0);
    const FN(vd) r = (x - k * 0x1.62e42fee00000p-1) - k * 0x1.a39ef35793c76p-33, s = r * r;
    FN(vd) even = 0x1.289185613a3d6p-22 * s + 0x1.a019b90d2ae7ap-16;
    FN(vd) odd = 0x1.af38a9b0ec855p-26 * s + 0x1.71de0dae63bb3p-19;
    even = even * s + 0x1.6c16c1788bd90p-10;
    odd = odd * s + 0x1.a01a01a7c41d5p-13;
    even = even * s + 0x1.5555555553d63p-5;
    odd = odd * s + 0x1.11111111109b3p-7;
    even = even * s + 0.5;
    odd = odd * s + 0x1.5555555555556p-3;
    const FN(vd) rest = s * (odd * r + even) + r;
    return (rest + 1.0) * (FN(vd))((FN(vi))shifted << 52);
}

/* As exp_d, for x up to 88; exactly 0 below -87.7. */
INLINE FN(vf) FN(exp_f)(FN(vf) x)
{
    x = FN(max_f)((FN(vf)){0} - 88.0f, x);
    const FN(vf) shifted = x * (float)LOG2_E + (0x1.8p23f + 127.0f), k = shifted - (0x1.8p23f + 127.0f);
    const FN(vf) r = (x - k * 0.693115234375f) - k * 3.19461849453e-5f, s = r * r;
    FN(vf) even = 0x1.6d1109p-10f * s + 0x1.555519p-5f;
    const FN(vf) odd = 0x1.120b6ep-7f * s + 0x1.5554dcp-3f;
    even = even * s + 0.5f;
    const FN(vf) rest = s * (odd * r + even) + r;
    return (rest + 1.0f) * (FN(vf))((FN(vw))shifted << 23);
}

/* log(x) for normal x > 0; NaN stays NaN. log(x) = k log(2) + log(m), m between
   sqrt(1/2) and sqrt(2), log(m) = 2 s + s^3 L(s^2) with s = (m - 1) / (m + 1). */
INLINE FN(vd) FN(log_d)(FN(vd) x)
{
    /* Adding the bits of 1 / sqrt(1/2) carries into the exponent where m is too large. */
    const FN(vi) moved = (FN(vi))((FN(vu))x + (0x3ff0000000000000 - 0x3fe6a09e667f3bcd));
    const FN(vi) power = (FN(vi))((FN(vu))moved >> 52) - 1023;
    const FN(vd) m = (FN(vd))((moved & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd);
    /* A whole number of 52 bits to a double, without an instruction that SSE2 lacks. */
    const FN(vd) k = (FN(vd))(power + 0x4338000000000000) - 0x1.8p52;
    const FN(vd) f = m - 1.0;
    const FN(vd) s = f / (f + 2.0), z = s * s;
    const FN(vd) z2 = z * z;
    FN(vd) even = 0x1.2b59b713616c9p-3 * z2 + 0x1.7462b58e46ebep-3;
    FN(vd) odd = 0x1.39fe42e9740a7p-3 * z2 + 0x1.c71c62e26208bp-3;
    even = even * z2 + 0x1.2492492df3ba9p-2;
    odd = odd * z2 + 0x1.99999999952ccp-2;
    even = even * z2 + 0x1.5555555555558p-1;
    const FN(vd) series = z * (odd * z + even);
    const FN(vd) half = 0.5 * f * f;
    /* log(m) = f - (half - s (half + series)), whose terms fall in size. */
    const FN(vd) tail = s * (half + series) + k * 0x1.a39ef35793c76p-33;
    const FN(vd) out = k * 0x1.62e42fee00000p-1 + (f - (half - tail));
    return FN(pick_d)((FN(vi))(x == x), out, x);
}

/* log(1 + x) for x >= 0. */
INLINE FN(vd) FN(log1p_d)(FN(vd) x)
{
    const FN(vd) u = x + 1.0;
    return FN(log_d)(u) + (x - (u - 1.0)) / u;
}

/* log(Gamma(x)) for normal x > 0, by Stirling's series at 8 and above; below, by
   Gamma(x) = Gamma(x + 8) / (x (x + 1) ... (x + 7)). */
INLINE FN(vd) FN(log_gamma_d)(FN(vd) x)
{
    const FN(vi) small = (FN(vi))(x < 8.0);
    const FN(vd) one = (FN(vd)){0} + 1.0, y = FN(pick_d)(small, x, one);
    const FN(vd) factors = (y * (y + 1.0)) * ((y + 2.0) * (y + 3.0)) * (((y + 4.0) * (y + 5.0)) * ((y + 6.0) * (y + 7.0)));
    const FN(vd) z = FN(pick_d)(small, x + 8.0, x), inverse = 1.0 / z, s = inverse * inverse;
    /* B(2k) / (2k (2k - 1)) for k = 8, ..., 1. */
    FN(vd) series = -0x1.e4286cb0f5398p-6 * s + 0x1.a41a41a41a41ap-8;
    series = series * s - 0x1.f6ab0d9993c7dp-10;
    series = series * s + 0x1.b951e2b18ff23p-11;
    series = series * s - 0x1.3813813813814p-11;
    series = series * s + 0x1.a01a01a01a01ap-11;
    series = series * s - 0x1.6c16c16c16c17p-9;
    series = series * s + 0x1.5555555555555p-4;
    const FN(vd) stirling = (z - 0.5) * FN(log_d)(z) - z + (series * inverse + 0x1.d67f1c864beb5p-1);
    return stirling - FN(pick_d)(small, FN(log_d)(factors), (FN(vd)){0});
}
