# tests/python/in_torch/test_derivatives.py — derivatives that attune does not have are refused wherever they are asked for
"""What would else be 0, or no derivative at all."""

import attune
import pytest
import torch
from attune.torch import flex_attention, scaled_dot_product_attention
from eager import close, qkv, recorder  # noqa: F401 (a fixture)
from torch.autograd import forward_ad


def operator(q, k, v):
    return torch.ops.attune.forward(q, k, v, None, None, [], [], "", "", "", "", "", None, 0, 0, False)[0]


def compiled(q, k, v):
    torch._dynamo.reset()
    return torch.compile(flex_attention, backend="eager", fullgraph=True)(q, k, v)


@pytest.mark.parametrize("call", [flex_attention, operator, compiled])
def test_gradients_of_gradients_are_refused(call, recorder):  # noqa: F811
    q, k, v = qkv()
    out = call(q, k, v)
    (first,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(attune.Error, match="second-derivative"):
        (out.sum() + first.pow(2).sum()).backward()
    by = torch.ones((), requires_grad=True)  # first derivatives depend on it by the gradient of the output alone
    (first,) = torch.autograd.grad((call(q.detach(), k, v.detach()) * by).sum(), k, create_graph=True)
    with pytest.raises(attune.Error, match="second-derivative"):
        torch.autograd.grad(first.sum(), by)


def test_a_graph_of_gradients_that_nobody_differentiates_is_no_mistake(recorder):  # noqa: F811
    q, k, v = qkv()
    other = torch.tensor(3.0, requires_grad=True)
    loss = flex_attention(q, k, v).sum() + other**3
    grads = torch.autograd.grad(loss, (q, other), create_graph=True)
    (loss + grads[1] ** 2).backward()
    close(q.grad, grads[0])
    assert other.grad == 27.0 + 2 * 27.0 * 18.0


def test_transforms_refuse_gradients_of_gradients():
    q, k, v = qkv(grad=False)

    def loss(q):
        return flex_attention(q, k, v).sum()

    def norm(q):
        return torch.func.grad(loss)(q).pow(2).sum()

    for ask in (lambda: torch.func.grad(norm)(q), lambda: torch.func.jacrev(torch.func.jacrev(loss))(q[..., :2, :]),
                lambda: torch.func.vmap(torch.func.grad(norm))(q[None])):
        with pytest.raises(attune.Error, match="second-derivative"):
            ask()
    close(torch.func.vmap(torch.func.grad(loss))(q[None])[0], torch.func.grad(loss)(q))


def test_tangents_of_forward_mode_are_refused():
    q, k, v = qkv(grad=False)
    bias = torch.randn(4)
    leaf = q.clone().requires_grad_()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        moving = forward_ad.make_dual(bias, torch.ones(4))
        for ask in (lambda: flex_attention(dual, k, v), lambda: flex_attention(q, k, dual),
                    lambda: scaled_dot_product_attention(q, dual, v),
                    lambda: flex_attention(q, k, v, lambda s, b, h, i, j: s + moving[h]),
                    lambda: flex_attention(leaf, k, v).backward(dual)):
            with pytest.raises(attune.Error, match="forward-derivative"):
                ask()
        close(flex_attention(leaf, k, v), flex_attention(forward_ad.unpack_dual(dual).primal, k, v))
    for ask in (torch.func.jvp, lambda f, primals, _: torch.func.hessian(lambda x: f(x).sum())(*primals)):
        with pytest.raises(attune.Error, match="forward-derivative"):
            ask(lambda q: flex_attention(q, k, v), (q,), (q,))
    other = torch.func.jvp(lambda x: flex_attention(q, k, v).sum() * x, (torch.ones(()),), (torch.ones(()),))
    close(*other)
