// The last step in figures, each with its unit.
import {byId, element, setText} from './dom.js';
import {MISSING, integer, number, significant} from './format.js';

const READOUTS = [
  ['Step', '', (step) => integer(step.step ?? 0)],
  ['Loss', 'nats/token', (step) => significant(number(step.lossNats))],
  ['Perplexity', '', (step) => significant(number(step.perplexity))],
  ['Bits per byte', '', (step) => significant(number(step.bitsPerByte))],
  ['max |z|', '', (step) => significant(number(step.maxAbsLogit))],
  ['log Z, mean', 'nats', (step) => significant(number(step.logZMeanNats))],
  ['Grad norm', '', (step) => significant(number(step.gradNorm))],
  ['Accuracy', '', (step) => (step.accuracy === undefined ? MISSING : `${(100 * Number(step.accuracy)).toFixed(1)} %`)],
  ['Learn. rate', '', (step) => significant(number(step.learningRate))],
  ['Tokens', 'in the loss', (step) => integer(step.unmaskedTokens ?? 0)],
  ['Non-finite', 'rows', (step) => integer(step.nonfiniteRows ?? 0)],
  ['Step time', 's', (step) => significant(number(step.stepSeconds))],
];

export class Readouts {
  constructor() {
    this.cells = READOUTS.map(([name, unit, read]) => {
      const value = element('span', {class: 'value'}, MISSING);
      const cell = element('div', {}, element('dt', {}, name), element('dd', {}, value, unit ? element('span', {class: 'unit'}, ` ${unit}`) : null));
      byId('readouts').append(cell);
      return {value, read, cell};
    });
  }

  update(step) {
    for (const {value, read, cell} of this.cells) {
      const text = step ? read(step) : MISSING;
      setText(value, text);
      cell.className = text === MISSING ? 'absent' : text === 'NaN' ? 'nonfinite' : '';
    }
  }
}
